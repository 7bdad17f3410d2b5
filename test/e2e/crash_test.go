package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/test/node"
)

// crashPod uses all features of a sandbox: an infra process, because its containers share a PID
// namespace, a volume in memory, and a host port.
const crashPod = `
apiVersion: v1
kind: Pod
metadata: {name: victim}
spec:
  shareProcessNamespace: true
  terminationGracePeriodSeconds: 0
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
  containers:
  - {name: a, image: 'localhost/web:1', ports: [{containerPort: 80, hostPort: 8080}]}
  - {name: b, image: 'localhost/web:1', command: [/bin/sleep, '1000'], volumeMounts: [{name: memory, mountPath: /m}]}
`

// latePod is crashPod with its network attached after its start.
var latePod = strings.Replace(crashPod, "{name: victim}", "{name: victim, annotations: {cni.husk.dev/network: after-start}}", 1)

// crashPoints returns the names of the crash points: before and after each action of the state
// tables. The second container passes those of the first again, numbered #2.
func crashPoints() []string {
	var list []string
	add := func(owner, state string, times ...string) {
		for _, n := range times {
			list = append(list, owner+"/"+state+"/begin"+n, owner+"/"+state+"/end"+n)
		}
	}
	for state := range sandboxstate.Table.Actions {
		add("sandbox", string(state), "")
	}
	for state := range containerstate.Table.Actions {
		add("container", string(state), "", "#2")
	}
	slices.Sort(list)
	return list
}

// TestCrash kills huskd at every crash point while a pod starts and stops. Each time the next huskd
// must reach the desired state, and stop and rm must leave nothing.
func TestCrash(t *testing.T) {
	t.Parallel()
	crashAtEach(t, crashPod, crashPoints())
}

// TestCrashNetworkAfterStart does the same for the states that differ if the network is attached
// after the start.
func TestCrashNetworkAfterStart(t *testing.T) {
	t.Parallel()
	var list []string
	for _, state := range []sandboxstate.State{sandboxstate.Pinning, sandboxstate.Starting, sandboxstate.Attaching, sandboxstate.Killing} {
		list = append(list, "sandbox/"+string(state)+"/begin", "sandbox/"+string(state)+"/end")
	}
	crashAtEach(t, latePod, list)
}

// crashAtEach kills huskd at each crash point, on several nodes in parallel.
func crashAtEach(t *testing.T, pod string, all []string, options ...node.Option) {
	const lanes = 4
	for lane := range lanes {
		t.Run("lane", func(t *testing.T) {
			t.Parallel()
			n, d := start(t, options...)
			d.Stop()
			manifest := write(t, n, "victim.yaml", pod)
			for i := lane; i < len(all); i += lanes {
				crashAt(t, n, manifest, all[i], options...)
			}
		})
	}
}

// crashAt kills huskd at a crash point, and checks what the next huskd makes of the pod.
func crashAt(t *testing.T, n *node.Node, manifest, point string, options ...node.Option) {
	t.Helper()
	d := n.Huskd(append(slices.Clone(options), node.Env(crashpoint.Env, point))...)
	up := n.Husk("run", "--wait", "--timeout", "30s", manifest)
	if up.Code == 0 {
		n.Husk("stop", "victim")
		n.Husk("rm", "-f", "victim")
	}
	if !d.Wait(10 * time.Second) {
		t.Fatalf("%s: huskd was not killed at this point: husk run ended with %d %s", point, up.Code, up.Stderr)
	}
	d = n.Huskd(options...)
	if up.Code != 0 {
		// husk run failed, so the pod is still declared.
		n.MustHusk("run", "--wait", "--timeout", "60s", manifest)
		if answer := mustGet(t, n.Net(), "127.0.0.1:8080"); !strings.HasPrefix(answer, "victim ") {
			t.Errorf("%s: the pod answers %q", point, answer)
		}
	}
	for _, verb := range []string{"stop", "rm"} {
		// A removal that had begun continues by itself.
		if r := n.Husk(verb, "victim"); r.Code != 0 && (up.Code != 0 || !strings.Contains(r.Stderr, "no pod")) {
			t.Fatalf("%s: %s: %s", point, verb, r.Stderr)
		}
		if out := n.MustHusk("ps", "-a"); strings.Contains(out, "Running") {
			t.Errorf("%s: after husk %s, husk ps shows\n%s", point, verb, out)
		}
	}
	d.Stop()
	n.NothingLeft()
	if t.Failed() {
		t.Fatalf("%s: see above", point)
	}
}
