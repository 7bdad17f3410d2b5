package podflags

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/manifest"
)

func build(t *testing.T, line string) (string, error) {
	t.Helper()
	var f Flags
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	set.SetInterspersed(false)
	f.Add(set)
	if err := set.Parse(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	env := func(key string) (string, bool) { return "of husk", key == "HOME" }
	text, err := f.Manifest(set.Arg(0), set.Args()[1:], Host{Dir: "/work", Env: env})
	return string(text), err
}

// A typical line of podman becomes a manifest that huskd accepts.
func TestManifest(t *testing.T) {
	got, err := build(t, "--name shop/web -e A=b -e HOME -e NONE -e C=$(d) -p 8080:80 -p 127.0.0.1:53:53/udp -p [::1]:81:80 "+
		"-v /srv:/srv:ro -v ./data:/data -v cache:/cache -v /tmp -it --user 1000:2000 --workdir /srv --entrypoint sh --restart on-failure:3 "+
		"--cpus 0.5 --memory 512m --hostname front --label tier=web --pull never quay.io/me/web:1 -c ls")
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: cache
  namespace: shop
spec:
  accessModes:
  - ReadWriteOnce
  resources:
    requests:
      storage: 1Gi
---
apiVersion: v1
kind: Pod
metadata:
  labels:
    tier: web
  name: web
  namespace: shop
spec:
  containers:
  - args:
    - -c
    - ls
    command:
    - sh
    env:
    - name: A
      value: b
    - name: HOME
      value: of husk
    - name: C
      value: $$(d)
    image: quay.io/me/web:1
    imagePullPolicy: Never
    name: web
    ports:
    - containerPort: 80
      hostPort: 8080
    - containerPort: 53
      hostIP: 127.0.0.1
      hostPort: 53
      protocol: UDP
    - containerPort: 80
      hostIP: ::1
      hostPort: 81
    resources:
      limits:
        cpu: 500m
        memory: 512Mi
    securityContext:
      runAsGroup: 2000
      runAsUser: 1000
    stdin: true
    stdinOnce: true
    tty: true
    volumeMounts:
    - mountPath: /srv
      name: volume-1
      readOnly: true
    - mountPath: /data
      name: volume-2
    - mountPath: /cache
      name: volume-3
    - mountPath: /tmp
      name: volume-4
    workingDir: /srv
  hostname: front
  restartPolicy: OnFailure
  volumes:
  - hostPath:
      path: /srv
    name: volume-1
  - hostPath:
      path: /work/data
    name: volume-2
  - name: volume-3
    persistentVolumeClaim:
      claimName: cache
  - emptyDir: {}
    name: volume-4
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, line := range []string{"", "--network host"} {
		text, err := build(t, line+" docker.io/library/nginx:1.27 nginx -g daemon")
		if err != nil {
			t.Fatal(err)
		}
		got += "---\n" + text
	}
	if _, err := manifest.Parse([]byte(got), manifest.Origin{File: "flags", Node: "n"}); err == nil || !strings.Contains(err.Error(), "nginx") || strings.Count(err.Error(), "\n") > 0 {
		t.Errorf("two pods have the name nginx, and all else is right, but the error is: %v", err)
	}
}

func TestNames(t *testing.T) {
	for image, want := range map[string]string{
		"nginx": "nginx", "docker.io/library/nginx:1.27": "nginx", "localhost:5000/My_App@sha256:abc": "my-app", "_": "pod",
		"quay.io/" + strings.Repeat("a", 70): strings.Repeat("a", 58),
	} {
		if got := nameOf(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

// A name that is taken gets a number, unless the user gave it.
func TestTaken(t *testing.T) {
	host := Host{Taken: func(namespace, name string) bool { return namespace == "" && (name == "web" || name == "web-2") }}
	f := Flags{restart: "no"}
	if pod, _, err := f.Objects("web", nil, host); err != nil || pod.Name != "web-3" {
		t.Errorf("%v %v", pod, err)
	}
	f.name = "web"
	if _, _, err := f.Objects("web", nil, host); err == nil || !strings.HasPrefix(err.Error(), "there is a pod web already: ") {
		t.Error(err)
	}
}

func TestMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"-p 80":             "--publish 80: must be",
		"-p 80-90:80-90":    "--publish 80-90:80-90: must be",
		"-p 1:99999":        "--publish",
		"-v a:b":            "must be an absolute path",
		"-v a:/b:exec":      "the only options",
		"-v a:/b:ro:c":      "must be SOURCE:TARGET",
		"--user daemon":     "must be UID or UID:GID",
		"--cpus many":       "--cpus many: must be",
		"--cpus -1":         "--cpus -1: must be",
		"--memory lots":     "--memory lots: must be",
		"--restart perhaps": "--restart perhaps: must be",
		"--network mine":    "--network mine: must be",
		"--pull sometimes":  "--pull sometimes: must be",
	} {
		if _, err := build(t, line+" web"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}
