package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// loggedIn adds the login of a user to requests.
type loggedIn struct {
	http.RoundTripper
	user, password string
}

func (l loggedIn) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(l.user, l.password)
	return l.RoundTripper.RoundTrip(r)
}

// dockerRegistry starts docker-registry on a node, with the image team/web:1, which requires the
// login of registryUser. It returns its address, and a function that stops it.
func dockerRegistry(t *testing.T, n *node.Node) (host string, end func()) {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("docker-registry is not installed")
	}
	// The output of htpasswd -B for registryPassword.
	users := write(t, n, "users", registryUser+":$2a$04$GOIAIhnTI5412FvlBZHFvugAJy/69f0ji5GaR772jeUKb8pyKgP2y\n")
	conf := write(t, n, "registry.yml", "version: 0.1\nstorage: {filesystem: {rootdirectory: "+n.Dir+"/registry}}\nhttp: {addr: 127.0.0.1:0}\nlog: {level: info, formatter: json}\n"+
		"auth: {htpasswd: {realm: tests, path: "+users+"}}\n")
	log, err := os.Create(n.Dir + "/registry.log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := n.Command(ctx, program, "serve", conf)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(end)
	listening := regexp.MustCompile(`listening on ([0-9.:]+)`)
	node.Eventually(t, time.Minute, func() string {
		raw, err := os.ReadFile(log.Name())
		if err != nil {
			return err.Error()
		}
		found := listening.FindSubmatch(raw)
		if found == nil {
			return "the registry doesn't listen: " + string(raw)
		}
		host = string(found[1])
		return ""
	})
	image, err := testimage.Build(t.Context(), testimage.Spec{Flavour: testimage.Web, Layers: 2})
	if err != nil {
		t.Fatal(err)
	}
	within := &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
		err = netns.Do(n.Net(), func() error {
			conn, err = net.Dial(network, address)
			return err
		})
		return conn, err
	}}
	client := &http.Client{Transport: loggedIn{within, registryUser, registryPassword}}
	if err := (testimage.Registry{URL: "http://" + host, Client: client}).Push(t.Context(), "team/web", "1", image); err != nil {
		t.Fatal(err)
	}
	return host, end
}

// TestImagePullSecrets pulls an image from a registry that requires a login. Only pods with the
// right Secret get it. The others report why not, and start once their Secret is corrected.
func TestImagePullSecrets(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	host, end := dockerRegistry(t, w.Node)
	secret := func(at, password string) string {
		file := fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, at, registryUser, password)
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\ntype: kubernetes.io/dockerconfigjson\ndata: {.dockerconfigjson: " + base64.StdEncoding.EncodeToString([]byte(file)) + "}\n---\n"
	}
	pod := func(name, more string) string {
		return podOf(name, more+"containers: [{name: c, image: '"+host+"/team/web:1', imagePullPolicy: Always, command: [sleep, '1000']}]")
	}
	const login = "imagePullSecrets: [{name: login}], "
	w.run(pod("nobody", ""))
	w.run(secret(host, "wrong") + pod("wrong", login))
	w.run(secret("other.test", registryPassword) + pod("elsewhere", login))
	refused := `(ErrImagePull|ImagePullBackOff): .*` + regexp.QuoteMeta(host) + `/team/web:1.*(login|log in|authoriz|credentials|password).*`
	w.awaitStatus(map[string]string{"nobody": refused, "wrong": refused, "elsewhere": refused})
	for _, name := range []string{"nobody", "wrong", "elsewhere"} {
		t.Logf("%s: %s", name, w.pod(name).Message)
	}
	w.run(secret(host, registryPassword)+pod("right", login), "--wait")
	w.eventually("right", "ready", isReady)
	// Applying a corrected Secret lets an existing pod start.
	if r := w.run(secret(host, registryPassword) + pod("wrong", login)); r.Code != 0 {
		t.Fatal(r)
	}
	w.eventually("wrong", "ready", isReady)
	if p := w.pod("nobody"); p.Ready {
		t.Errorf("a pod without a login runs the image: %+v", p)
	}
	if strings.Contains(w.d.Log(), registryPassword) || bytes.Contains([]byte(w.MustHusk("events", "wrong")), []byte(registryPassword)) {
		t.Error("the log or the events contain the password")
	}
	end()
	w.remove("nobody", "wrong", "elsewhere", "right")
	w.end()
}

// TestCredentialProvider pulls an image with the login that a program of the node knows. A pod
// whose own login is wrong gets it too. The program is asked once.
func TestCredentialProvider(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	host, end := dockerRegistry(t, n)
	asked := n.Dir + "/asked"
	answer := fmt.Sprintf(`{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry", "auth": {%q: {"username": %q, "password": %q}}}`,
		host, registryUser, registryPassword)
	provider := write(t, n, "vault", "#!/bin/sh\ncat >> $ASKED\necho \"$1\"\n")
	if err := os.Chmod(provider, 0o755); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": []any{map[string]any{
			"name": "vault", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": []string{host + "/team"}, "defaultCacheDuration": "1h",
			"args": []string{answer}, "env": []any{map[string]string{"name": "ASKED", "value": asked}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := testEnvOn(t, n, node.Flags("--image-credential-provider-config", write(t, n, "providers.json", string(config)), "--image-credential-provider-bin-dir", n.Dir))
	pod := func(name, more string) string {
		return podOf(name, more+"containers: [{name: c, image: '"+host+"/team/web:1', imagePullPolicy: Always, command: [sleep, '1000']}]")
	}
	wrong := fmt.Sprintf(`{"auths":{%q:{"username":"me","password":"wrong"}}}`, host)
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\ntype: kubernetes.io/dockerconfigjson\ndata: {.dockerconfigjson: " + base64.StdEncoding.EncodeToString([]byte(wrong)) + "}\n---\n"
	w.run(pod("without", ""), "--wait")
	w.run(secret+pod("wrong", "imagePullSecrets: [{name: login}], "), "--wait")
	w.eventually("without", "ready", isReady)
	w.eventually("wrong", "ready", isReady)
	request, err := os.ReadFile(asked)
	if err != nil || strings.Count(string(request), "CredentialProviderRequest") != 1 || !strings.Contains(string(request), `"image":"`+host+`/team/web"`) {
		t.Errorf("the program was asked %s %v", request, err)
	}
	if strings.Contains(w.d.Log(), registryPassword) {
		t.Error("the log contains the password")
	}
	end()
	w.remove("without", "wrong")
	w.end()
}
