package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/huskd/husk/internal/host"
)

// Hastener lets the kernel do in advance what the move of a process into a
// cgroup waits for: an RCU grace period, 12 ms and more on an idle machine,
// unless another move was no longer ago (cgroup_attach_lock in the kernel's
// kernel/cgroup/cgroup.c, rcu_sync_enter in kernel/rcu/sync.c). An OCI runtime
// makes that move some ten milliseconds after a container was asked for, or
// twenty and more, before which the kernel has forgotten a single one.
//
// One whose host has no cgroups does nothing.
type Hastener struct {
	point, controller string // a hierarchy, any

	mu    sync.Mutex
	until map[int]time.Time // of those who wait for a move, by number
	last  int
	busy  bool // keep runs
}

const (
	// again is how long a move does for the next one: less than a grace period.
	again = 10 * time.Millisecond
	// longest is how long a move is waited for. Forks are dearer meanwhile.
	longest = 150 * time.Millisecond
)

// NewHastener returns one for a host.
func NewHastener(c host.Cgroup) *Hastener {
	controller := ""
	if !c.Mode.Unified() && len(c.Controllers) > 0 {
		controller = c.Controllers[0]
	}
	return &Hastener{point: c.Mounts[controller], controller: controller, until: map[int]time.Time{}}
}

// Begin lets it begin, behind the caller's back, until end is called or a while
// has passed. Nothing is changed by it: this process is moved to the cgroup
// where it is.
func (h *Hastener) Begin() (end func()) {
	if h.point == "" {
		return func() {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	n := h.last
	h.until[n] = time.Now().Add(longest)
	if !h.busy {
		h.busy = true
		go h.keep()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.until, n)
	}
}

// keep moves this process as long as somebody waits.
func (h *Hastener) keep() {
	for h.wanted() {
		h.move()
		time.Sleep(again)
	}
}

func (h *Hastener) wanted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(h.until, func(_ int, until time.Time) bool { return until.Before(now) })
	h.busy = len(h.until) > 0
	return h.busy
}

func (h *Hastener) move() {
	table, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return
	}
	// Where it fails, somebody waits that much longer.
	if own, ok := own(string(table), h.controller); ok {
		_ = os.WriteFile(filepath.Join(h.point, own, "cgroup.procs"), []byte("0"), 0)
	}
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
