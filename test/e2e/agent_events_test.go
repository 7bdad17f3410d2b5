package e2e

import (
	"bufio"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestDescribe checks husk describe and husk events for a pod whose probes fail.
func TestDescribe(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follow := w.Command(ctx, w.Binary("husk"), "--socket", "unix://"+w.State+"/husk.sock", "events", "-f", "ill")
	manifest := podOf("ill", "volumes: [{name: v, emptyDir: {medium: Memory}}], "+only("command: "+shell("sleep 1000 & wait")+
		", volumeMounts: [{name: v, mountPath: /v, readOnly: true}], readinessProbe: {exec: {command: [test, -e, /tmp/x]}, periodSeconds: 1},"+
		"livenessProbe: {tcpSocket: {port: 81}, periodSeconds: 1, failureThreshold: 3}"))
	if r := w.run(manifest); r.Code != 0 {
		t.Fatal(r)
	}
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan bool, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.Contains(lines.Text(), "Normal Killing pod ill, container c") {
				seen <- true
				return
			}
		}
		seen <- false
	}()
	w.eventually("ill", "restarted", func(p listed) bool { return p.Containers[0].Restarts > 0 })
	if !<-seen {
		t.Error("husk events -f doesn't show that the container was killed")
	}
	cancel()
	_ = follow.Wait()
	var text string
	node.Eventually(t, 20*time.Second, func() string {
		text = w.MustHusk("describe", "ill")
		for _, want := range []string{
			`Name: +default/ill`, `Source: +run`, `Status: +Running.*`, `Conditions: +PodReadyToStartContainers=yes, Initialized=yes, ContainersReady=no, Ready=no`,
			`Network: +10\.201\.\S+, fd68:\S+, mtu \d+, on the node \S+, namespace /run/netns/husk-[\w-]+`, `Container c:`, `  Ready: +no`, `  Restarts: +[1-9]`,
			`Waits for: +the (readiness probe|next start|start) of container c.*`, `  Last state: +Terminated \w+ \w+ ago, exit code 1(43|37), after .*`,
			`  Liveness: +\w+; tcp :81 every 1s after 0s, timeout 1s, 1 successes, 3 failures`, `  Readiness: +\w+; exec test -e /tmp/x every 1s .*`,
			`  Mount: +/v from v, read-only`, `Volume v: an empty directory in memory`, `Events:`,
			`  .* Normal +SandboxReady +pod +its addresses are .*`, `  .* Normal +Started +container c +Container started`,
			`  .* Warning +Unhealthy +container c +Liveness probe failed: dial tcp .*: connection refused`,
			`  .* Normal +Killing +container c +Container c failed liveness probe, will be restarted`, `  .* Warning +Ended +container c +ended with exit code 1(43|37).*`, `  .* [2-9] +Normal +Created +container c +Container created`,
			`  .* Normal +Pulled +container c +Container image "localhost/web:1" already present on machine`,
		} {
			if !regexp.MustCompile("(?m)^" + want + "$").MatchString(text) {
				return "husk describe doesn't say " + want + ":\n" + text
			}
		}
		return ""
	})
	t.Log(text)
	w.remove("ill")
	if r := w.Husk("events", "ill"); r.Code != 0 || !strings.Contains(r.Stdout, "Killing") {
		t.Errorf("husk events of a removed pod: %+v", r)
	}
	w.fails("nobody", w.Husk("describe", "nobody"), 1, `.*no pod "nobody".*`)
	w.end()
}
