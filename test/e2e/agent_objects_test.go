package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

const settings = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: %s, shape: round}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {user: me, password: t0p}
---
`

// TestConfigMapsAndSecrets passes config maps and secrets to containers in all supported ways.
func TestConfigMapsAndSecrets(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const volumes = `volumes: [
    {name: s, configMap: {name: settings, items: [{key: color, path: a/b, mode: 0400}, {key: shape, path: c}]}},
    {name: l, secret: {secretName: login, defaultMode: 0440}},
    {name: d, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: memory, resourceFieldRef: {containerName: c, resource: limits.memory, divisor: 1Mi}}]}},
    {name: all, projected: {sources: [{configMap: {name: settings, items: [{key: color, path: color}]}}, {secret: {name: login, items: [{key: user, path: deep/user}]}},
      {secret: {name: none, optional: true}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}},
    {name: e, emptyDir: {}}]`
	const script = `set +e
env | grep -E '^(S_|COLOR|NONE|password|user)' | sort
cat /s/a/b /s/c /l/user /d/labels /d/memory /all/color /all/deep/user /all/name | tr '\n' ' ' | sed 's/ *$//'; echo
stat -L -c '%a %g' /s/a/b /s/c /l/user /e | tr '\n' ' '; id -G
touch /l/x 2>&1; echo hi >/e/f; stat -c '%g' /e/f; cat /part /dir/b; ls /made`
	pod := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: told, labels: {app: web, tier: "1"}}
spec:
  restartPolicy: Never
  securityContext: {fsGroup: 2000, runAsUser: 1000, runAsGroup: 1000, supplementalGroupsPolicy: Strict}
  %s
  containers:
  - name: c
    image: localhost/web:1
    resources: {limits: {memory: 64Mi}}
    envFrom: [{prefix: S_, configMapRef: {name: settings}}, {secretRef: {name: login}}, {secretRef: {name: none, optional: true}}]
    env:
    - {name: user, value: mine}
    - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
    - {name: NONE, valueFrom: {secretKeyRef: {name: login, key: none, optional: true}}}
    volumeMounts:
    - {name: s, mountPath: /s}
    - {name: l, mountPath: /l}
    - {name: d, mountPath: /d}
    - {name: all, mountPath: /all}
    - {name: e, mountPath: /e}
    - {name: s, mountPath: /part, subPath: c}
    - {name: s, mountPath: /dir, subPath: a}
    - {name: e, mountPath: /made, subPathExpr: $(COLOR)/x}
    command: %s
`, volumes, shell(script))
	if r := w.run(fmt.Sprintf(settings, "blue")+pod, "--wait"); r.Code != 0 {
		t.Fatal(r)
	}
	checkLines(t, "the container", w.MustHusk("logs", "told"),
		"COLOR=blue", "S_color=blue", "S_shape=round", "password=t0p", "user=mine",
		`blueroundmeapp="web" tier="1"64bluemetold`,
		"440 2000 644 2000 440 2000 2777 2000 1000 2000",
		".*Read-only file system", "2000", "roundblue")
	w.remove("told")
	w.end()
}

// TestConfigMapChange checks that a pod starts once its config map exists, and that files follow
// changes of the config map without a restart.
func TestConfigMapChange(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	dir := n.Dir + "/manifests"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := testEnvOn(t, n, node.Flags("--manifests", dir))
	write(t, n, "manifests/pod.yaml", podOf("waits", "volumes: [{name: s, configMap: {name: settings}}], "+
		only("env: [{name: C, valueFrom: {configMapKeyRef: {name: settings, key: color}}}], volumeMounts: [{name: s, mountPath: /s}, {name: s, mountPath: /part, subPath: color}], command: [sleep, '1000']")))
	p := w.eventually("waits", "waiting", func(p listed) bool { return p.Reason == "FailedMount" && p.Message != "" })
	if !strings.Contains(p.Message, "config map default/settings not found: husk run its manifest") {
		t.Errorf("the waiting pod's message is %q", p.Message)
	}
	if got := w.MustHusk("events", "waits"); !strings.Contains(got, "FailedMount") || strings.Contains(got, "Failed  ") {
		t.Errorf("the waiting pod's events are\n%s", got)
	}
	declared := func(color string) {
		t.Helper()
		write(t, n, "manifests/.new", fmt.Sprintf(settings, color))
		if err := os.Rename(dir+"/.new", dir+"/settings.yaml"); err != nil {
			t.Fatal(err)
		}
	}
	has := func(color, rest string) {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			if got := w.sh("waits", "cat /s/color; echo; cat /part; echo; echo $C"); got != color+"\n"+rest {
				return fmt.Sprintf("the container has %q", got)
			}
			return ""
		})
	}
	began := time.Now()
	declared("blue")
	w.eventually("waits", "ready", isReady)
	t.Logf("%v after the config map came, the pod was ready", time.Since(began))
	has("blue", "blue\nblue")
	declared("green")
	has("green", "blue\nblue")
	// If the file becomes malformed, the pod keeps the last good version, even after a restart of
	// huskd.
	write(t, n, "manifests/settings.yaml", "kind: [")
	w.d.Kill()
	w.d = w.Huskd(node.Flags("--manifests", dir))
	has("green", "blue\nblue")
	declared("red")
	has("red", "blue\nblue")
	if p := w.pod("waits"); p.Containers[0].Restarts != 0 {
		t.Errorf("the container was restarted: %+v", p)
	}
	for _, f := range []string{"pod.yaml", "settings.yaml"} {
		if err := os.Remove(dir + "/" + f); err != nil {
			t.Fatal(err)
		}
	}
	w.checkUnharmed("removal of the files")
	w.end()
}
