// Package idrange gives each pod with hostUsers: false its own range of the node's user and group
// IDs. A pod keeps its range as long as its sandbox exists: the record of it is the sandbox's
// config, which is journaled before anything is created.
package idrange

import (
	"sync"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox"
)

// The ranges lie above those that the kubelet and /etc/subuid give out, and below the IDs that
// overflow a signed 32-bit number, which some programs use for IDs.
const (
	rangeSize  = 1 << 16
	firstRange = 1 << 30
	lastRange  = 1<<31 - rangeSize
)

// Allocator assigns ranges. The zero value is ready to use.
type Allocator struct {
	mu       sync.Mutex
	reserved map[uint32]bool // for sandboxes that don't exist yet, by first ID
}

// Assign sets a range in config that no sandbox of list uses. The caller calls release once list
// returns the sandbox, or if it is not created.
func (a *Allocator) Assign(config *runtimeapi.PodSandboxConfig, list func() []sandbox.Status) (release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	used := map[uint32]bool{}
	for _, st := range list() {
		user := st.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
		for _, ids := range [][]*runtimeapi.IDMapping{user.GetUids(), user.GetGids()} {
			for _, m := range ids {
				for id := m.GetHostId() / rangeSize; id <= (m.GetHostId()+m.GetLength()-1)/rangeSize; id++ {
					used[id*rangeSize] = true
				}
			}
		}
	}
	first := uint32(firstRange)
	for used[first] || a.reserved[first] {
		if first += rangeSize; first > lastRange {
			return nil, errdefs.ErrResourceExhausted.WithMessage("all ranges of user IDs are in use: stop a pod with hostUsers: false")
		}
	}
	if a.reserved == nil {
		a.reserved = map[uint32]bool{}
	}
	a.reserved[first] = true
	ids := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: first, Length: rangeSize}}
	}
	config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: ids(), Gids: ids()}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.reserved, first)
	}, nil
}

// Apply gives a container the ID mappings of its sandbox, and idmaps its mounts with them.
func Apply(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) {
	user := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if user == nil {
		return
	}
	config.GetLinux().GetSecurityContext().GetNamespaceOptions().UsernsOptions = user
	for _, m := range config.GetMounts() {
		m.UidMappings, m.GidMappings = user.GetUids(), user.GetGids()
	}
}
