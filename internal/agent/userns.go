package agent

import (
	"context"
	"sync"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox"
)

// Each pod with hostUsers: false has a range of the node's user and group IDs,
// which it keeps as long as its sandbox is there: the sandbox's config, which is
// journaled before anything is made, is the record of that. The ranges are above
// those that the kubelet and /etc/subuid give away, and below what programs
// that take an ID for a signed number can't count.
const (
	rangeSize  = 1 << 16
	firstRange = 1 << 30
	lastRange  = 1<<31 - rangeSize
)

// ranges are those of sandboxes that are being asked for.
type ranges struct {
	mu    sync.Mutex
	asked map[uint32]bool
}

// take gives config a range that no other sandbox has. It is to be released
// once the sandbox is among those that list returns, or is not to be.
func (r *ranges) take(config *runtimeapi.PodSandboxConfig, list func() []sandbox.Status) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := map[uint32]bool{}
	for _, st := range list() {
		user := st.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
		for _, ids := range [][]*runtimeapi.IDMapping{user.GetUids(), user.GetGids()} {
			for _, m := range ids {
				for id := m.GetHostId() / rangeSize; id <= (m.GetHostId()+m.GetLength()-1)/rangeSize; id++ {
					taken[id*rangeSize] = true
				}
			}
		}
	}
	first := uint32(firstRange)
	for taken[first] || r.asked[first] {
		if first += rangeSize; first > lastRange {
			return nil, errdefs.ErrResourceExhausted.WithMessage("all ranges of user IDs are taken: stop a pod with hostUsers: false")
		}
	}
	if r.asked == nil {
		r.asked = map[uint32]bool{}
	}
	r.asked[first] = true
	ids := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: first, Length: rangeSize}}
	}
	config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: ids(), Gids: ids()}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.asked, first)
	}, nil
}

// runSandbox has the sandbox made, with users of its own if the pod asks for it.
func (w *worker) runSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (sandbox.Status, error) {
	if ownUsers(w.manifest) {
		release, err := w.a.ranges.take(config, w.a.cfg.Sandboxes.List)
		if err != nil {
			return sandbox.Status{}, err
		}
		defer release()
	}
	return w.a.cfg.Sandboxes.Run(ctx, config, handler)
}

func ownUsers(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// shareUsers makes a container's users, and those who own the files of its
// volumes, the users of its sandbox.
func shareUsers(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) {
	user := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if user == nil {
		return
	}
	config.GetLinux().GetSecurityContext().GetNamespaceOptions().UsernsOptions = user
	for _, m := range config.GetMounts() {
		m.UidMappings, m.GidMappings = user.GetUids(), user.GetGids()
	}
}
