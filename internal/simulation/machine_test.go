package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/huskd/husk/internal/journal/journaltest"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// machine is a node with everything that a huskd can leave behind. It outlives huskd, and a part of
// it outlives a boot.
//
// How long an act takes and how it fails depends only on the seed, on what is done to which object,
// and on how often that was done before. So a shortened schedule runs like the whole one wherever
// the parts that were left out have no effect.
type machine struct {
	dir   string // of the directories of lives
	disk  *journaltest.Disk
	began time.Time

	mu sync.Mutex
	// recordsLost is set by a power loss or damage, until a huskd has started. everLost stays set.
	recordsLost, everLost bool
	// impaired are sandboxes that have lost a namespace, their infra process or their address. huskd
	// may notice that as late as at its next start, or when a runtime no longer hangs.
	impaired map[string]bool
	unswept  bool // a sweep failed: the next start repeats it
	sched    schedule
	fired    []string // the faults that have happened
	calm     bool     // no more faults happen
	boot     int
	lives    int
	pins     map[string]bool
	mounts   map[string]bool
	cgroups  map[string]bool
	procs    map[string]*process
	alloc    *ipam.Allocator
	leases   map[string]ipam.Lease // by sandbox
	// quarantined are released addresses that can't be leased yet.
	quarantined []ipam.Quarantined
	owed        map[string]bool   // sandboxes whose detachment is a debt
	names       map[string]string // of IDs
	known       map[string]int    // how many IDs have had a name
	counts      map[string]int    // of acts, by what they are
	steps       int
	wrong       []string // broken promises
	trace       []string
	tracing     bool
}

// process is the process of a container.
type process struct {
	id      string
	pid     int
	running bool
	exit    *oci.Exit
	ended   chan struct{}
	cgroup  string
	net     string // its network namespace; empty is the node's
	sandbox string
}

// subnet has so few addresses that they are used up and reused.
var subnet = netip.MustParsePrefix("10.8.0.0/28")

const quarantine = time.Minute

func newMachine(s schedule, dir string) *machine {
	m := &machine{
		dir: dir, disk: &journaltest.Disk{}, sched: s, began: time.Now(),
		impaired: map[string]bool{}, names: map[string]string{}, known: map[string]int{}, counts: map[string]int{},
	}
	m.bootUp()
	return m
}

// bootUp starts a new boot: nothing is left in the kernel.
func (m *machine) bootUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boot++
	for _, p := range m.procs {
		p.end(255)
	}
	m.pins, m.mounts, m.cgroups = map[string]bool{}, map[string]bool{}, map[string]bool{}
	m.procs, m.leases, m.owed = map[string]*process{}, map[string]ipam.Lease{}, map[string]bool{}
	m.quarantined = nil
	m.alloc, _ = ipam.New(quarantine, subnet)
}

// end ends the process. The caller holds m.mu.
func (p *process) end(code int) {
	if p.exit == nil {
		p.exit = &oci.Exit{Code: code, At: time.Now()}
		close(p.ended)
	}
}

// setName sets the name of an ID in schedules and traces, unless it has one.
func (m *machine) setName(id, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[id] == "" {
		m.known[name]++
		m.names[id] = fmt.Sprintf("%s~%d", name, m.known[name])
	}
}

func (m *machine) name(id string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name := m.names[id]; name != "" {
		return name
	}
	return pod.Short(id)
}

// violate notes a broken promise.
func (m *machine) violate(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrong = append(m.wrong, fmt.Sprintf("%9.3f ", time.Since(m.began).Seconds())+fmt.Sprintf(format, args...))
	m.noteLocked("!!! "+format, args...)
}

func (m *machine) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLocked(format, args...)
}

func (m *machine) noteLocked(format string, args ...any) {
	if m.tracing {
		m.trace = append(m.trace, fmt.Sprintf("%9.3f ", time.Since(m.began).Seconds())+fmt.Sprintf(format, args...))
	}
}

// The faults of acts.
const (
	fine   = ""
	fails  = "fails"  // it fails and has no effect
	half   = "half"   // it fails and has its effect
	hangs  = "hangs"  // it times out and has no effect
	sticks = "sticks" // it times out and has its effect
	slow   = "slow"   // it takes a minute longer
)

// act is the fate of one call of a driver.
type act struct {
	key   string
	took  time.Duration
	fault string
	early bool // its effect happens at its start, not at its end
}

// next decides how the next act of that kind goes.
func (m *machine) next(what string) act {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
	m.counts[what]++
	a := act{key: fmt.Sprintf("%s#%d", what, m.counts[what])}
	r := m.chance(a.key)
	a.took = time.Duration(1+r.IntN(20_000_000)) * time.Nanosecond
	a.early = r.IntN(2) == 0
	a.fault = m.sched.fault(a.key, r)
	if m.calm || strings.HasPrefix(what, "pinned") {
		a.fault = fine
	}
	if a.fault != fine {
		m.fired = append(m.fired, a.key+"="+a.fault)
	}
	if a.fault == slow {
		a.took += time.Minute
	}
	return a
}

// chance returns the source of randomness for a key.
func (m *machine) chance(key string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return rand.New(rand.NewPCG(m.sched.Seed, h.Sum64()))
}

// errFault is the error of faults.
var errFault = errors.New("simulated failure")

// patience is how long an act hangs if it has no deadline.
const patience = 3 * time.Minute

// do acts on the machine. The effect happens at the start, at the end or not at all, and never
// after the end of the life.
func (l *life) do(ctx context.Context, what string, effect func() error) error {
	if l.over() {
		return errDead
	}
	a := l.m.next(what)
	err := l.try(ctx, a, effect)
	if l.m.tracing && !l.over() {
		l.m.note("  %s %s -> %v", a.key, a.fault, err)
	}
	return err
}

func (l *life) try(ctx context.Context, a act, effect func() error) (err error) {
	happens := a.fault != fails && a.fault != hangs
	if happens && a.early {
		if err = l.alive(effect); err != nil {
			return err
		}
	}
	timer := time.NewTimer(a.took)
	if a.fault == hangs || a.fault == sticks {
		timer.Reset(patience)
	}
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.died:
	}
	if happens && !a.early {
		if err = l.alive(effect); err != nil {
			return err
		}
	}
	switch {
	case l.over():
		return errDead
	case a.fault == fails, a.fault == half, a.fault == hangs, a.fault == sticks:
		return fmt.Errorf("%s: %w", a.key, errFault)
	}
	return nil
}

// alive runs effect unless the life is over.
func (l *life) alive(effect func() error) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.over() {
		return errDead
	}
	return effect()
}

// rel returns a path without the directory of the life.
func (l *life) rel(path string) string {
	if rest, ok := strings.CutPrefix(path, l.dir+"/"); ok {
		return rest
	}
	return path
}

// dirOf returns the directory of a life.
func (m *machine) dirOf(life int) string { return filepath.Join(m.dir, fmt.Sprint("life-", life)) }
