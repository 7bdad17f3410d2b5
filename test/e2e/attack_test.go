package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
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

// TestForkBomb: the processes of a pod that starts them without end are bounded for each container
// and for all together, and neither the node nor another pod notices.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	const inContainer, inPod, tried = 200, 300, 5000
	w := newTestEnv(t, node.Flags("--pids-limit", fmt.Sprint(inContainer), "--pod-pids-limit", fmt.Sprint(inPod)))
	// A shell that can't fork ends, and its children stay. The first process needs none any more.
	bomb := fmt.Sprintf("sh -c 'i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done' & wait; exec sleep 1000", tried)
	container := func(name string) string {
		return "{name: " + name + ", image: 'localhost/web:1', command: " + shell(bomb) + "}"
	}
	w.run(podOf("bomb", "containers: ["+container("one")+", "+container("two")+"]"))
	processes := func(rel string) int {
		n, err := strconv.Atoi(w.cgroupFile("bomb", rel, "pids.current"))
		if err != nil {
			t.Error(err)
		}
		return n
	}
	full := func() string { // but for the shells that have ended
		if has := processes(""); has < inPod-10 {
			return fmt.Sprintf("the bomb, which has %d processes", has)
		}
		return ""
	}
	node.Eventually(t, 30*time.Second, full)
	w.run(podOf("next", only("command: [sleep, '1000']")), "--wait")
	if got := w.sh("next", "sh -c 'echo $((6*7))'"); got != "42" {
		t.Errorf("another pod prints %q", got)
	}
	if has := processes(""); has > inPod {
		t.Errorf("the pod has %d processes, and its limit is %d", has, inPod)
	}
	for _, c := range w.pod("bomb").Containers {
		if has := processes(c.ID); has > inContainer || c.Restarts != 0 {
			t.Errorf("container %s has %d processes and %d restarts, and its limit is %d", c.Name, has, c.Restarts, inContainer)
		}
	}
	w.remove("bomb", "next")
	w.end()
}
