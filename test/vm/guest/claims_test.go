//go:build vm

package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/huskd/husk/test/node"
)

const claimManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: writer
    image: localhost/web:1
    volumeMounts: [{name: data, mountPath: /data}]
`

// checkClaimSize checks that a claim can't take more than its size on a file system with project
// quotas: when it is new, when its size changes, and when its files are imported.
func checkClaimSize(t *testing.T, n *node.Node) {
	t.Helper()
	run := func(size string) {
		t.Helper()
		n.MustHusk("run", "--wait", write(t, n, "claim.yaml", fmt.Sprintf(claimManifest, size)))
	}
	// fill returns how many MiB fit.
	fill := func() string {
		t.Helper()
		out := n.MustHusk("exec", "writer", "--", "/bin/sh", "-c",
			"i=0; while [ $i -lt 20 ] && dd if=/dev/zero of=/data/$i bs=1M count=1 2>/dev/null; do i=$((i+1)); done; rm -f /data/*; mkdir -p /data/a; echo kept >/data/a/b; echo $i")
		return strings.TrimSpace(out)
	}
	inspect := func(size string) {
		t.Helper()
		var v struct {
			Path, Size   string
			UsedBytes    int64
			SizeEnforced bool
		}
		if err := json.Unmarshal([]byte(n.MustHusk("volume", "inspect", "data")), &v); err != nil {
			t.Fatal(err)
		}
		if !v.SizeEnforced || v.Size != size {
			t.Errorf("inspect says %+v, want an enforced size of %s", v, size)
		}
	}
	run("4Mi")
	if got := fill(); got != "3" { // directories take some, too
		t.Errorf("%s MiB of a claim of 4 fit, want 3", got)
	}
	inspect("4Mi")
	n.MustHusk("rm", "-f", "writer")
	run("8Mi")
	if got := fill(); got != "7" {
		t.Errorf("%s MiB of a claim of 8 fit, want 7", got)
	}
	inspect("8Mi")
	n.MustHusk("rm", "-f", "writer")

	small, large := filepath.Join(n.Dir, "small.tar"), filepath.Join(n.Dir, "large.tar")
	n.MustHusk("volume", "export", "data", "-o", small)
	big := filepath.Join(n.Dir, "big")
	if err := os.WriteFile(big, make([]byte, 9*mebi), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Must("tar", "-C", n.Dir, "-cf", large, "big")
	if r := n.Husk("volume", "import", "data", large); r.Code == 0 || !strings.Contains(r.Stderr, "declare a larger one") {
		t.Errorf("an archive of 9 MiB is imported into a claim of 8: %+v", r)
	}
	n.MustHusk("volume", "import", "data", small)
	inspect("8Mi")
	run("8Mi")
	if got := n.MustHusk("exec", "writer", "--", "cat", "/data/a/b"); got != "kept\n" {
		t.Errorf("the imported file is %q", got)
	}
	if got := fill(); got != "7" {
		t.Errorf("%s MiB of a claim of 8 fit after an import, want 7", got)
	}
	n.MustHusk("rm", "-f", "writer")
	n.MustHusk("volume", "rm", "data")
}
