package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClaims runs pods with claims: their files outlive the pods and huskd, until the volume is
// removed.
func TestClaims(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	disk := filepath.Join(w.Dir, "disk")
	claims := `apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {capacity: {storage: 10Gi}, accessModes: [ReadWriteOnce], storageClassName: manual, hostPath: {path: ` + disk + `}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bound}
spec: {storageClassName: manual, accessModes: [ReadWriteOnce], resources: {requests: {storage: 3Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Gi}}}
---
`
	pod := func(name, script string) string {
		return podOf(name, `restartPolicy: Never, volumes: [{name: d, persistentVolumeClaim: {claimName: data}}, {name: b, persistentVolumeClaim: {claimName: bound, readOnly: true}},
    {name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}], `+
			only("volumeMounts: [{name: d, mountPath: /d}, {name: b, mountPath: /b}, {name: e, mountPath: /e}], command: "+shell(script)))
	}
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disk, "x"), []byte("of the disk"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := w.run(claims+pod("first", "cat /b/x; echo; touch /b/y 2>&1; echo kept >/d/x; touch /e/x"), "--wait"); r.Code != 0 {
		t.Fatal(r)
	}
	checkLines(t, "the first pod", w.MustHusk("logs", "first"), "of the disk", ".*Read-only file system")
	// The pod has ended, but is still there.
	w.fails("remove a volume in use", w.Husk("volume", "rm", "data"), 1, "husk: claim default/data is used by pod default/first: remove the pod first")
	if r := w.run(claims + pod("second", "cat /d/x; ls /e")); r.Code != 0 {
		t.Fatal(r)
	}
	w.eventually("second", "done", func(p listed) bool { return p.Phase == "Succeeded" })
	if got := w.MustHusk("logs", "second"); got != "kept\n" {
		t.Errorf("the second pod has read %q", got)
	}
	w.MustHusk("rm", "-f", "first", "second")
	if got := w.MustHusk("volume", "ls"); !strings.Contains(got, disk) || strings.Count(got, "\n") != 3 {
		t.Errorf("husk volume ls prints\n%s", got)
	}
	w.MustHusk("volume", "rm", "data", "default/bound")
	if _, err := os.Stat(filepath.Join(disk, "x")); err != nil {
		t.Errorf("the files of the PersistentVolume: %v", err)
	}
	w.fails("remove it again", w.Husk("volume", "rm", "data"), 1, "husk: no claim default/data: husk volume ls lists them")
	w.end()
}
