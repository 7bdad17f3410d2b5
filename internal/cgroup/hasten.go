package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/huskd/husk/internal/host"
)

// Hastener lets the kernel do in advance what the move of a process into a
// cgroup waits for: an RCU grace period, 12 ms and more on an idle machine,
// unless another move was no longer ago (cgroup_attach_lock in the kernel's
// kernel/cgroup/cgroup.c, rcu_sync_enter in kernel/rcu/sync.c). An OCI runtime
// makes that move some ten milliseconds after a container was asked for.
//
// The zero value is of a host without cgroups, and does nothing.
type Hastener struct {
	point, controller string // a hierarchy, any
	busy              atomic.Bool
}

// NewHastener returns one for a host.
func NewHastener(c host.Cgroup) *Hastener {
	controller := ""
	if !c.Mode.Unified() && len(c.Controllers) > 0 {
		controller = c.Controllers[0]
	}
	return &Hastener{point: c.Mounts[controller], controller: controller}
}

// Begin lets it begin, behind the caller's back. Nothing is changed by it: this
// process is moved to the cgroup where it is.
func (h *Hastener) Begin() {
	if h.point == "" || !h.busy.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer h.busy.Store(false)
		table, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			return
		}
		// Where it fails, somebody waits that much longer.
		if own, ok := own(string(table), h.controller); ok {
			_ = os.WriteFile(filepath.Join(h.point, own, "cgroup.procs"), []byte("0"), 0)
		}
	}()
}

// own finds a process's cgroup in its table, /proc/PID/cgroup: lines such as
// 4:cpu,cpuacct:/a/b for v1, and 0::/a/b for v2.
func own(table, controller string) (string, bool) {
	for line := range strings.Lines(table) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			// One outside of the cgroup namespace begins with /.. and isn't to be
			// found; neither is a removed one, which ends with (deleted).
			if name == controller && filepath.Clean(parts[2]) == parts[2] && !strings.HasPrefix(parts[2], "/..") {
				return parts[2], true
			}
		}
	}
	return "", false
}
