package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

const claimedSet = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: %d
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: %s
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: 'localhost/web:1', command: [/bin/sh, -c, '[ -e /data/made ] || hostname > /data/made; exec sleep 1000'], volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Mi}}}
`

// TestVolumeClaimTemplates checks that each pod of a StatefulSet has claims of its own, which stay
// when the set is scaled down or removed, unless it says Delete.
func TestVolumeClaimTemplates(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	volumes := func(want string) {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			var got []string
			for _, line := range strings.Split(strings.TrimSpace(w.MustHusk("volume", "ls")), "\n")[1:] {
				f := strings.Fields(line)
				got = append(got, f[1]+" "+f[2])
			}
			if strings.Join(got, ", ") != want {
				return fmt.Sprintf("the volumes are %q, want %q", strings.Join(got, ", "), want)
			}
			return ""
		})
	}
	file := write(t, w.Node, "db.yaml", fmt.Sprintf(claimedSet, 2, "{}"))
	run := func() {
		t.Helper()
		if r := w.Husk("run", file, "--wait", "--timeout", "60s"); r.Code != 0 {
			t.Fatalf("%+v\n%s", r, w.Husk("events").Stdout)
		}
	}
	run()
	volumes("data-db-0 default/db-0, data-db-1 default/db-1")
	if got := w.sh("db-1", "cat /data/made; echo mine > /data/made"); got != "db-1" {
		t.Errorf("db-1 has the volume of %q", got)
	}
	w.MustHusk("scale", "statefulset/db", "1")
	volumes("data-db-0 default/db-0, data-db-1 <none>")
	w.d.Kill()
	w.d = w.Huskd()
	w.MustHusk("scale", "statefulset/db", "2")
	w.eventually("db-1", "ready", isReady)
	if got := w.sh("db-1", "cat /data/made"); got != "mine" {
		t.Errorf("after scaling, db-1 has the volume of %q", got)
	}
	r := w.Husk("rm", "-f", file)
	if want := "persistentvolumeclaim default/data-db-1 is kept with its files: husk volume rm default/data-db-1 removes them\n"; r.Code != 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("husk rm says %v", r)
	}
	volumes("data-db-0 <none>, data-db-1 <none>")

	write(t, w.Node, "db.yaml", fmt.Sprintf(claimedSet, 2, "{whenDeleted: Delete, whenScaled: Delete}"))
	run()
	if got := w.sh("db-1", "cat /data/made"); got != "mine" {
		t.Errorf("after another run, db-1 has the volume of %q", got)
	}
	w.MustHusk("scale", "statefulset/db", "1")
	volumes("data-db-0 default/db-0")
	w.MustHusk("rm", "statefulset/db")
	if got := w.Husk("volume", "ls"); got.Stderr != "no volumes: a pod with a PersistentVolumeClaim makes one\n" {
		t.Errorf("the volumes of a set that deletes them: %v", got)
	}
	w.end()
}

// TestReadWriteOncePod checks that a claim that one pod at a time may use is free again once the
// pod has ended, and that others say what they wait for.
func TestReadWriteOncePod(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	write(t, w.Node, "claim.yaml", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: one}\nspec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Mi}}}\n")
	w.MustHusk("run", w.Dir+"/claim.yaml")
	pod := func(name, command string) string {
		return podOf(name, "restartPolicy: Never, volumes: [{name: v, persistentVolumeClaim: {claimName: one}}], "+only("command: [/bin/sh, -c, '"+command+"'], volumeMounts: [{name: v, mountPath: /v}]"))
	}
	w.run(pod("first", "while [ ! -e /v/end ]; do sleep 0.1; done"))
	w.eventually("first", "ready", isReady)
	w.run(pod("second", "exit 0") + "---\n" + podOf("third", "restartPolicy: Never, "+only("command: ['true']")))
	w.eventually("third", "completed", func(p listed) bool { return p.Phase == "Succeeded" })
	p := w.eventually("second", "waiting", func(p listed) bool { return p.Message != "" })
	if want := "claim default/one is ReadWriteOncePod, and pod default/first uses it: remove one of the pods"; !strings.Contains(p.Message, want) {
		t.Errorf("the second pod waits for %q, want %q", p.Message, want)
	}
	w.sh("first", "touch /v/end")
	w.eventually("first", "completed", func(p listed) bool { return p.Phase == "Succeeded" })
	w.eventually("second", "completed", func(p listed) bool { return p.Phase == "Succeeded" })
	w.fails("removing a volume of ended pods", w.Husk("volume", "rm", "one"), 1, "husk: claim default/one is used by pod default/.*: remove the pod first")
	w.MustHusk("rm", "first", "second", "third")
	w.MustHusk("volume", "rm", "one")
	if got := w.Husk("objects"); !strings.HasPrefix(got.Stderr, "no objects") {
		t.Errorf("the claim is left: %v", got)
	}
	w.end()
}
