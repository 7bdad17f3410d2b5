package agent

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

// having is a sandbox with that range.
func having(first, size uint32) sandbox.Status {
	config := blank()
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: size}}
	config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: ids, Gids: ids}
	return sandbox.Status{Config: config}
}

func TestRanges(t *testing.T) {
	var r ranges
	there := []sandbox.Status{{Config: blank()}, having(firstRange, rangeSize), having(1<<17, 1<<17), having(firstRange+3*rangeSize-1, 2)}
	list := func() []sandbox.Status { return there }
	take := func() (uint32, func()) {
		t.Helper()
		config := blank()
		release, err := r.take(config, list)
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
	// The first is taken, and one reaches from the third into the fourth.
	a, releaseA := take()
	b, releaseB := take()
	if a != firstRange+rangeSize || b != firstRange+4*rangeSize {
		t.Errorf("ranges from %d and %d on", a-firstRange, b-firstRange)
	}
	there = append(there, having(b, rangeSize))
	releaseB()
	releaseA()
	if again, release := take(); again != a {
		t.Errorf("one that was released isn't taken again, but %d", again-firstRange)
	} else {
		release()
	}
	there = []sandbox.Status{having(firstRange, lastRange-firstRange)}
	last, release := take()
	if last != lastRange {
		t.Errorf("the last is %d", last)
	}
	if _, err := r.take(blank(), list); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "stop a pod") {
		t.Errorf("none is left: %v", err)
	}
	release()
}
