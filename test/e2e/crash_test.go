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

// crashPod has all that a sandbox can have: an infra process, since its
// containers share a PID namespace, a volume in memory, a port of the node's.
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

// latePod is attached to the network after its start.
var latePod = strings.Replace(crashPod, "{name: victim}", "{name: victim, annotations: {cni.husk.dev/network: after-start}}", 1)

// edges are the places, before and after each action of the tables, where
// huskd is killed. The second container's are those of the first again.
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

// TestCrash kills huskd at every edge of the life of a pod, up and down. Each
// time the next huskd must bring about what was wanted, and stop and rm leave
// nothing.
func TestCrash(t *testing.T) {
	t.Parallel()
	crashAtEach(t, crashPod, crashPoints())
}

// TestCrashNetworkAfterStart does so for the way up that is different if the network
// comes after the start.
func TestCrashNetworkAfterStart(t *testing.T) {
	t.Parallel()
	var list []string
	for _, state := range []sandboxstate.State{sandboxstate.Pinning, sandboxstate.Starting, sandboxstate.Attaching, sandboxstate.Killing} {
		list = append(list, "sandbox/"+string(state)+"/begin", "sandbox/"+string(state)+"/end")
	}
	crashAtEach(t, latePod, list)
}

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

func crashAt(t *testing.T, n *node.Node, manifest, edge string, options ...node.Option) {
	t.Helper()
	d := n.Huskd(append(slices.Clone(options), node.Env(crashpoint.Env, edge))...)
	up := n.Husk("run", "--wait", "--timeout", "30s", manifest)
	if up.Code == 0 {
		n.Husk("stop", "victim")
		n.Husk("rm", "-f", "victim")
	}
	if !d.Wait(10 * time.Second) {
		t.Fatalf("%s: huskd was not killed there: run ended with %d %s", edge, up.Code, up.Stderr)
	}
	d = n.Huskd(options...)
	if up.Code != 0 {
		// It was wanted when huskd was killed.
		n.MustHusk("run", "--wait", "--timeout", "60s", manifest)
		if answer := mustGet(t, n.Net(), "127.0.0.1:8080"); !strings.HasPrefix(answer, "victim ") {
			t.Errorf("%s: the pod answers %q", edge, answer)
		}
	}
	for _, verb := range []string{"stop", "rm"} {
		// A removal that had begun goes on by itself.
		if r := n.Husk(verb, "victim"); r.Code != 0 && (up.Code != 0 || !strings.Contains(r.Stderr, "no pod")) {
			t.Fatalf("%s: %s: %s", edge, verb, r.Stderr)
		}
		if out := n.MustHusk("ps", "-a"); strings.Contains(out, "Running") {
			t.Errorf("%s: after %s the pod is shown as\n%s", edge, verb, out)
		}
	}
	d.Stop()
	n.NothingLeft()
	if t.Failed() {
		t.Fatalf("%s: see above", edge)
	}
}
