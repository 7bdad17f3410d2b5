package agent

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

// asking is a pod that asks for that.
func asking(t *testing.T, name, requests string) *corev1.Pod {
	t.Helper()
	return podFrom(t, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, uid: %s}\nspec: {hostNetwork: true, hostIPC: true, containers: [{name: c, image: 'reg.test/none:1', imagePullPolicy: Never, resources: {requests: {%s}}}]}\n", name, name, requests))
}

func twoCPUs() criconfig.Node { return criconfig.Node{CPUs: 2, Memory: 1 << 30} }

func TestRoom(t *testing.T) {
	t.Parallel()
	node := twoCPUs
	pod := func(name, requests string) *corev1.Pod { return asking(t, name, requests) }
	r := &room{}
	take := func(p *corev1.Pod, force bool, want string) {
		t.Helper()
		reason, message := r.take(p, node, force)
		if got := reason + ": " + message; want == "" && reason != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", p.Name, got, want)
		}
	}
	a, b, huge, nothing := pod("a", "cpu: 1500m, memory: 512Mi"), pod("b", "cpu: 600m"), pod("huge", "memory: 2Gi"), pod("nothing", "")
	take(a, false, "")
	take(a, false, "") // it has it already
	take(b, false, "OutOfcpu: the pod asks for 600m of cpu; 1500m of the node's 2 are taken: it starts when there is room")
	take(huge, false, "OutOfmemory: the pod asks for 2Gi of memory; 512Mi of the node's 1Gi are taken")
	take(nothing, false, "")
	if r.leave("nothing") || !r.leave("a") || r.leave("a") {
		t.Error("leaving frees what isn't taken, or doesn't what is")
	}
	take(b, false, "")
	take(huge, true, "") // it runs already
	take(nothing, false, "")
	take(a, false, "OutOfcpu: the pod asks for 1500m")
}
