package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestSystemPrune: husk system prune removes what is over and what nothing declares, and nothing
// else: a pod that runs, a pod of the manifests directory that has ended, the image of a CronJob,
// the volumes of pods and those that are declared.
func TestSystemPrune(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	manifests := filepath.Join(n.Dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	w := testEnvOn(t, n, node.Flags("--manifests", manifests, "--image-gc-high", "100"))
	write(t, n, "manifests/filed.yaml", podOf("filed", "restartPolicy: Never, "+only("command: [sh, -c, 'echo done']")))
	loadLayers(t, n, "localhost/cron:1", 3)
	loadLayers(t, n, "localhost/unused:1", 4)
	claim := func(name string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name + "}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n---\n"
	}
	writes := func(name, claim, policy, then string) string {
		return podOf(name, "restartPolicy: "+policy+", volumes: [{name: v, persistentVolumeClaim: {claimName: "+claim+"}}], "+only("volumeMounts: [{name: v, mountPath: /v}], command: "+shell("head -c 100000 /dev/zero >/v/x; head -c 200000 /dev/zero >/layer; echo written; "+then)))
	}
	write(t, n, "manifests/loose.yaml", claim("loose"))
	w.mustRun(writes("over", "loose", "Never", "true"))
	w.mustRun(claim("declared") + writes("also-over", "declared", "Never", "true"))
	w.mustRun(claim("used") + writes("uses", "used", "Always", "exec sleep 1000"))
	w.mustRun("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: rare}\nspec: {schedule: '0 0 29 2 *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'localhost/cron:1'}]}}}}}\n")
	w.eventually("filed", "completed", func(p listed) bool { return p.Phase == "Succeeded" })
	w.eventually("over", "completed", func(p listed) bool { return p.Phase == "Succeeded" })
	w.eventually("also-over", "completed", func(p listed) bool { return p.Phase == "Succeeded" })
	if err := os.Remove(filepath.Join(manifests, "loose.yaml")); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, 30*time.Second, func() string {
		if k := w.diskUse()["volumes"]; k.ReclaimableBytes < 100_000 {
			return fmt.Sprintf("the volume of a claim that nothing declares is not reclaimable: %+v", k)
		}
		return ""
	})

	var info struct {
		Pods, Containers struct{ Running, Total int }
		Root             string
	}
	if err := json.Unmarshal([]byte(w.MustHusk("info", "-o", "json")), &info); err != nil || info.Pods.Running != 2 || info.Pods.Total != 5 || info.Containers.Running != 2 || info.Containers.Total != 5 || info.Root == "" {
		t.Errorf("info: %+v, %v", info, err)
	}
	kinds := w.diskUse()
	if k := kinds["containers"]; k.Total != 5 || k.Active != 2 || k.Bytes < 200_000 || k.ReclaimableBytes != 0 { // a layer goes with its container's end
		t.Errorf("containers: %+v", k)
	}
	if k := kinds["volumes"]; k.Total != 3 || k.Active != 1 || k.ReclaimableBytes < 100_000 || k.ReclaimableBytes > 150_000 {
		t.Errorf("volumes: %+v", k)
	}
	if k := kinds["logs"]; k.Total != 5 || k.ReclaimableBytes == 0 || k.Bytes <= k.ReclaimableBytes {
		t.Errorf("logs: %+v", k)
	}
	images := kinds["images"]
	if images.ReclaimableBytes == 0 || images.ReclaimableBytes >= images.Bytes {
		t.Errorf("images: %+v", images)
	}

	r := w.Husk("system", "prune", "--all", "--volumes", "--force")
	t.Logf("%s%s", r.Stdout, r.Stderr)
	if r.Code != 0 || !strings.HasPrefix(r.Stdout, "pod default/also-over removed\npod default/over removed\nvolume default/loose removed\nimage localhost/unused:1 removed\nimage sha256:") ||
		strings.Count(r.Stdout, "removed\n") != 5 || r.Stderr != "volume default/declared is still declared: husk volume rm removes it with its files\n" {
		t.Errorf("prune: exit code %d", r.Code)
	}
	kinds = w.diskUse()
	if k := kinds["containers"]; k.Total != 3 || k.ReclaimableBytes != 0 {
		t.Errorf("containers after prune: %+v", k)
	}
	if k := kinds["volumes"]; k.Total != 2 || k.ReclaimableBytes != 0 {
		t.Errorf("volumes after prune: %+v", k)
	}
	if k := kinds["images"]; k.ReclaimableBytes != 0 || k.Bytes != images.Bytes-images.ReclaimableBytes {
		t.Errorf("images after prune: %+v, before: %+v", k, images)
	}
	for _, name := range []string{"filed", "other", "uses"} {
		w.pod(name) // fails if it is gone
	}
	if got := w.MustHusk("logs", "filed"); got != "done\n" {
		t.Errorf("the log of a pod that stays: %q", got)
	}
	if got := w.MustHusk("image", "ls", "-o", "json"); !strings.Contains(got, "localhost/cron:1") || !strings.Contains(got, "localhost/web:1") {
		t.Errorf("images that stay: %s", got)
	}
	if r := w.Husk("system", "prune", "-af", "--volumes"); r.Code != 0 || r.Stdout != "freed 0B\n" {
		t.Errorf("prune again: %v", r)
	}

	// The manifest of a pod runs elsewhere.
	text := w.MustHusk("generate", "uses")
	before := w.spec("uses")
	w.MustHusk("rm", "-f", "uses")
	file := write(t, n, "again.yaml", text)
	w.MustHusk("run", "--wait", file)
	if after := w.spec("uses"); after != before {
		t.Errorf("the generated manifest\n%s\nmakes\n%s\ninstead of\n%s", text, after, before)
	}

	w.MustHusk("rm", "-f", "uses", "cronjob/rare")
	w.MustHusk("volume", "rm", "used", "declared")
	if err := os.Remove(filepath.Join(manifests, "filed.yaml")); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, 30*time.Second, func() string {
		if out := n.MustHusk("ps", "-a", "-q"); strings.Count(out, "\n") > 1 {
			return "the pod of a removed file is still there: " + out
		}
		return ""
	})
	w.end()
}

// TestInfoNetworkOnly: where huskd is only the network of another runtime, husk info describes
// that, and the commands about pods say why there are none.
func TestInfoNetworkOnly(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	d := n.Huskd(node.Flags("--network-only", "--cni-conf-dir", n.Dir))
	info := n.MustHusk("info")
	for _, want := range []string{"network-only: the pod network of another runtime\n", "ptp, MTU ", "10.201.0.0/16"} {
		if !strings.Contains(info, want) {
			t.Errorf("no %q in\n%s", want, info)
		}
	}
	for _, absent := range []string{"\npods ", "\nimages ", "\nruntimes "} {
		if strings.Contains(info, absent) {
			t.Errorf("%q in\n%s", absent, info)
		}
	}
	for _, args := range [][]string{{"system", "df"}, {"system", "prune", "-f"}, {"generate", "web"}} {
		if r := n.Husk(args...); r.Code != 1 || !strings.Contains(r.Stderr, "huskd runs no pods here: it was started with network-only") {
			t.Errorf("husk %v: %v", args, r)
		}
	}
	d.Stop()
	n.NothingLeft()
}

type diskUse struct {
	Kind                    string
	Total, Active           int
	Bytes, ReclaimableBytes int64
}

// diskUse returns what husk system df says, by the kinds.
func (w *testEnv) diskUse() map[string]diskUse {
	w.t.Helper()
	var list []diskUse
	if err := json.Unmarshal([]byte(w.MustHusk("system", "df", "-o", "json")), &list); err != nil {
		w.t.Fatal(err)
	}
	kinds := map[string]diskUse{}
	for _, k := range list {
		kinds[k.Kind] = k
	}
	return kinds
}

// spec returns the UID and the spec of a pod.
func (w *testEnv) spec(pod string) string {
	w.t.Helper()
	return w.MustHusk("inspect", pod, "-o", "jsonpath={.Uid} {.Manifest.spec}")
}
