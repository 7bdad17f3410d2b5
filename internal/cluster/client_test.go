package cluster

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/huskd/husk/internal/network/policy/accept"
)

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, text := range map[string]string{
		"empty": "", "rubbish": "{[", "HTML": "<html>",
		"no cluster":   "apiVersion: v1\nkind: Config\ncurrent-context: x\n",
		"no authority": "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://x', certificate-authority: /nowhere}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n",
		"bad URL":      "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'ht!tp://:'}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n",
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(path, log); err == nil || !strings.HasPrefix(err.Error(), "kubeconfig "+path+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("/nowhere", log); err == nil {
		t.Error("a missing kubeconfig is accepted")
	}
}

// TestProtobuf checks that objects are requested in protobuf, which takes less memory and time to
// decode than JSON, and what only has JSON in JSON.
func TestProtobuf(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/policy.networking.k8s.io/v1alpha2" && r.Header.Get("Accept") == runtime.ContentTypeJSON {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"clusternetworkpolicies"}]}`)
			return
		}
		accepted := strings.Split(r.Header.Get("Accept"), ",")
		if len(accepted) != 2 || accepted[0] != runtime.ContentTypeProtobuf || accepted[1] != runtime.ContentTypeJSON {
			t.Errorf("%s accepts %q", r.URL, accepted)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		var answer runtime.Object = pod
		if !strings.HasSuffix(r.URL.Path, "/web") {
			w.WriteHeader(http.StatusNotFound)
			answer = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		if err := protobuf.NewSerializer(nil, nil).Encode(answer, w); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: '" + server.URL + "'}}]\ncontexts: [{name: x, context: {cluster: c}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	var pod corev1.Pod
	if err := c.Get(t.Context(), Pod("default", "web"), &pod); err != nil || pod.Name != "web" {
		t.Errorf("the pod is %q, %v", pod.Name, err)
	}
	if err := c.Get(t.Context(), Pod("default", "none"), &pod); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that isn't there: %v", err)
	}
	if served, err := c.Serves(t.Context(), accept.ClusterVersion, "clusternetworkpolicies"); err != nil || !served {
		t.Errorf("served: %v, %v", served, err)
	}
}

func TestLogOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &Client{log: slog.New(slog.NewTextHandler(&out, nil)), logged: map[string]string{}}
	for range 3 {
		c.LogOnce("pods", errors.New("no\nanswer  today"))
	}
	c.LogOnce("pods", errors.New(strings.Repeat("<p>é", 1000)))
	c.LogOnce("pods", nil)
	c.LogOnce("pods", nil)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "no answer today") || len(lines[1]) > 700 || !strings.Contains(lines[2], "answers again") {
		t.Errorf("the log is:\n%s", out.String())
	}
}
