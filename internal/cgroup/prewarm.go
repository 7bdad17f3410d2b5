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

// Prewarmer keeps the RCU grace period short that the kernel waits for before it moves a process
// into a cgroup. The first move in a while waits 12 ms or more on an idle machine; a move shortly
// after another doesn't wait (cgroup_attach_lock in kernel/cgroup/cgroup.c, rcu_sync_enter in
// kernel/rcu/sync.c). An OCI runtime makes its move some 10 to 20 ms after the container was
// requested, and the kernel may have forgotten a single earlier move by then. So the Prewarmer
// repeats a move that changes nothing until the container exists: see docs/decisions/0026.
//
// On a host without cgroups it does nothing.
type Prewarmer struct {
	mount, controller string // of any one hierarchy

	mu      sync.Mutex
	until   map[int]time.Time // deadline of each Start that hasn't been stopped
	lastID  int               // key of the latest entry in until
	running bool              // whether loop runs
}

const (
	// warmInterval is how long a move spares the next one the wait: less than a grace period.
	warmInterval = 10 * time.Millisecond
	// warmLimit is how long one Start keeps moving at most: forks are slower meanwhile.
	warmLimit = 150 * time.Millisecond
)

// NewPrewarmer returns a Prewarmer for a host with the cgroups c.
func NewPrewarmer(c host.Cgroup) *Prewarmer {
	controller := ""
	if !c.Mode.Unified() && len(c.Controllers) > 0 {
		controller = c.Controllers[0]
	}
	return &Prewarmer{mount: c.Mounts[controller], controller: controller, until: map[int]time.Time{}}
}

// Start moves this process to the cgroup that it is in, over and over in the background, until stop
// is called or warmLimit has passed. It doesn't block.
func (p *Prewarmer) Start() (stop func()) {
	if p.mount == "" {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastID++
	id := p.lastID
	p.until[id] = time.Now().Add(warmLimit)
	if !p.running {
		p.running = true
		go p.loop()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.until, id)
	}
}

func (p *Prewarmer) loop() {
	for p.wanted() {
		p.move()
		time.Sleep(warmInterval)
	}
}

// wanted drops the Starts whose time is over and reports whether any is left.
func (p *Prewarmer) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.until, func(_ int, until time.Time) bool { return until.Before(now) })
	p.running = len(p.until) > 0
	return p.running
}

// move ignores errors: the container's own move then waits as it would without a Prewarmer.
func (p *Prewarmer) move() {
	table, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return
	}
	if own, ok := ownCgroup(string(table), p.controller); ok {
		_ = os.WriteFile(filepath.Join(p.mount, own, "cgroup.procs"), []byte("0"), 0)
	}
}

// ownCgroup finds a process's cgroup in its /proc/PID/cgroup, which has lines such as
// 4:cpu,cpuacct:/a/b for v1 and 0::/a/b for v2.
func ownCgroup(table, controller string) (string, bool) {
	for line := range strings.Lines(table) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			// A path outside of the cgroup namespace begins with /.. and can't be reached.
			if name == controller && filepath.Clean(parts[2]) == parts[2] && !strings.HasPrefix(parts[2], "/..") {
				return parts[2], true
			}
		}
	}
	return "", false
}
