package e2e

import (
	"strconv"
	"strings"
	"testing"
)

// TestHostilePod checks that a pod without any privilege can't harm huskd or other pods.
func TestHostilePod(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	// The first run leaves files of huskd that are as large as they can be, and the second is
	// started from them.
	fill := "test -e /v/again && exec sleep 1000; touch /v/again; " +
		"head -c 100000000 /dev/zero >/etc/hosts; wc -c </etc/hosts; truncate -s 8000000000000 /etc/hosts; truncate -s 8000000000000 /etc/resolv.conf; " +
		"truncate -s 1000000000000 /dev/termination-log; exit 1"
	w.run(podOf("filler", "volumes: [{name: v, emptyDir: {}}], "+only("volumeMounts: [{name: v, mountPath: /v}], command: "+shell(fill))))
	w.eventually("filler", "ready after a restart", func(p listed) bool { return p.Ready && p.Containers[0].Restarts == 1 })
	size := func(text string) int {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if n := size(w.sh("filler", "wc -c </etc/hosts")); n > 1000 {
		t.Errorf("/etc/hosts has %d bytes after a restart", n)
	}
	if n := size(w.MustHusk("logs", "--previous", "filler")); n > 65<<20 { // /dev/shm, and the files beside it
		t.Errorf("%d bytes of the node's /run were filled by /etc/hosts", n)
	}
	// What a program inherits is what it may use: no descriptor of the runtime (CVE-2024-21626).
	open := "readlink /proc/self/fd/* | grep -v -e '^/dev/null' -e '^pipe:' -e '^/proc/'; true"
	if got := w.sh("filler", open); got != "" {
		t.Errorf("an exec inherits %q", got)
	}
	w.remove("filler")
	w.checkUnharmed("a pod that fills its files")
	w.end()
}
