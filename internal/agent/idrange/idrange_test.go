package idrange

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox"
)

func blank() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}},
	}}
}

// withRange returns a sandbox that has this range.
func withRange(first, size uint32) sandbox.Status {
	config := blank()
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: size}}
	config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: ids, Gids: ids}
	return sandbox.Status{Config: config}
}

func TestAssign(t *testing.T) {
	var a Allocator
	sandboxes := []sandbox.Status{{Config: blank()}, withRange(firstRange, rangeSize), withRange(1<<17, 1<<17), withRange(firstRange+3*rangeSize-1, 2)}
	list := func() []sandbox.Status { return sandboxes }
	assign := func() (uint32, func()) {
		t.Helper()
		config := blank()
		release, err := a.Assign(config, list)
		if err != nil {
			t.Fatal(err)
		}
		user := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
		u, g := user.GetUids()[0], user.GetGids()[0]
		if u.GetHostId() != g.GetHostId() || u.GetContainerId() != 0 || u.GetLength() != rangeSize {
			t.Errorf("%v", user)
		}
		return u.GetHostId(), release
	}
	// The first range is in use, and another one reaches from the third into the fourth.
	first, releaseFirst := assign()
	second, releaseSecond := assign()
	if first != firstRange+rangeSize || second != firstRange+4*rangeSize {
		t.Errorf("the ranges begin at %d and %d", first-firstRange, second-firstRange)
	}
	sandboxes = append(sandboxes, withRange(second, rangeSize))
	releaseSecond()
	releaseFirst()
	if again, release := assign(); again != first {
		t.Errorf("a released range is not assigned again, but %d", again-firstRange)
	} else {
		release()
	}
	sandboxes = []sandbox.Status{withRange(firstRange, lastRange-firstRange)}
	last, release := assign()
	if last != lastRange {
		t.Errorf("the last range begins at %d", last)
	}
	if _, err := a.Assign(blank(), list); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "stop a pod") {
		t.Errorf("with all ranges in use: %v", err)
	}
	release()
}
