package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestVolumeArchives copies the files of a claim to another one, with owners, modes and links.
func TestVolumeArchives(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	claimed := func(pod, claim, script string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n---\n", claim) +
			podOf(pod, "restartPolicy: Never, volumes: [{name: v, persistentVolumeClaim: {claimName: "+claim+"}}], "+only("volumeMounts: [{name: v, mountPath: /v}], command: "+shell(script)))
	}
	w.mustRun(claimed("writer", "data", "cd /v; echo kept >a; chown 7:8 a; chmod 640 a; ln a hard; ln -s a soft; mkdir d; echo more >d/x"))
	file := filepath.Join(w.Dir, "data.tar")
	w.MustHusk("volume", "export", "data", "-o", file)
	var seen struct {
		Size         string
		Modes, Pods  []string
		UsedBytes    int64
		SizeEnforced bool
	}
	if err := json.Unmarshal([]byte(w.MustHusk("volume", "inspect", "data")), &seen); err != nil || seen.Size != "1Gi" || len(seen.Modes) != 1 || len(seen.Pods) != 1 || seen.UsedBytes == 0 || seen.SizeEnforced {
		t.Errorf("inspected: %+v, %v", seen, err)
	}
	if got := w.MustHusk("volume", "import", "copy", file); got != "imported default/copy\n" {
		t.Errorf("husk volume import says %q", got)
	}
	w.mustRun(claimed("reader", "copy", "cd /v; cat a hard soft d/x; stat -c '%u:%g %a %h' a; readlink soft"))
	if got := w.MustHusk("logs", "reader"); got != "kept\nkept\nkept\nmore\n7:8 640 2\na\n" {
		t.Errorf("the copy has\n%s", got)
	}
	// What fails changes nothing.
	bad := write(t, w.Node, "bad.tar", strings.Repeat("no archive ", 200))
	if r := w.Husk("volume", "import", "copy", bad); r.Code != 1 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "import into claim default/copy: tar: ") {
		t.Errorf("a broken archive: %v", r)
	}
	w.MustHusk("rm", "reader")
	w.run(claimed("user", "copy", "cat /v/a; exec sleep 1000"))
	w.eventually("user", "ready", isReady)
	w.fails("an import into a claim in use", w.Husk("volume", "import", "copy", file), 1, "husk: claim default/copy is used by pod default/user: stop and remove the pod first")
	w.fails("an export of nothing", w.Husk("volume", "export", "none"), 1, "husk: no claim default/none: husk volume ls lists them")
	if got := w.MustHusk("logs", "user"); got != "kept\n" {
		t.Errorf("after a failed import, the volume has %q", got)
	}
	w.MustHusk("rm", "-f", "user", "writer")
	w.MustHusk("volume", "rm", "data", "copy")
	w.end()
}
