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

// machine is a node: all that a huskd can leave behind. It outlives huskd, and
// in part itself.
//
// Nothing on it is decided by chance while it runs: how long an act takes and how
// it fails depends on the seed, on what is done to what, and on how often that
// was done before. A schedule from which something is left out so goes on as
// it did wherever it is not concerned.
type machine struct {
	dir   string // where lives have their directories
	disk  *journaltest.Disk
	began time.Time

	mu sync.Mutex
	// recordsLost is true from a power loss, or damage, until a huskd has begun;
	// everLost ever after.
	recordsLost, everLost bool
	// marred are sandboxes whose namespaces somebody took away, or whose infra
	// process ended: it takes until the next start to find that out, or as long as
	// a runtime hangs. Or their address is gone, which the network tells of.
	marred  map[string]bool
	unswept bool // what no record speaks of resisted: it goes at the next start
	sched   schedule
	fired   []string // the faults that came about
	calm    bool     // nothing fails by itself any more
	boot    int
	lives   int
	pins    map[string]bool
	mounts  map[string]bool
	cgroups map[string]bool
	procs   map[string]*process
	alloc   *ipam.Allocator
	leases  map[string]ipam.Lease // by sandbox
	rests   []ipam.Quarantined
	owed    map[string]bool // sandboxes whose detachment is
	names   map[string]string
	known   map[string]int // how many IDs have had a name
	counts  map[string]int // of acts
	steps   int
	wrong   []string
	trace   []string
	tracing bool
}

// process is a container's in the hands of a runtime.
type process struct {
	id      string
	pid     int
	running bool
	exit    *oci.Exit
	ended   chan struct{}
	cgroup  string
	net     string // the namespace that it is in; empty is the node's
	sandbox string
}

// subnet has few addresses, so that they run out and come back.
var subnet = netip.MustParsePrefix("10.8.0.0/28")

const quarantine = time.Minute

func newMachine(s schedule, dir string) *machine {
	m := &machine{
		dir: dir, disk: &journaltest.Disk{}, sched: s, began: time.Now(),
		marred: map[string]bool{}, names: map[string]string{}, known: map[string]int{}, counts: map[string]int{},
	}
	m.bootUp()
	return m
}

// bootUp begins a boot: nothing is left in the kernel of the one before.
func (m *machine) bootUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boot++
	for _, p := range m.procs {
		p.end(255)
	}
	m.pins, m.mounts, m.cgroups = map[string]bool{}, map[string]bool{}, map[string]bool{}
	m.procs, m.leases, m.owed = map[string]*process{}, map[string]ipam.Lease{}, map[string]bool{}
	m.rests = nil
	m.alloc, _ = ipam.New(quarantine, subnet)
}

// end ends the process. The caller holds m.mu.
func (p *process) end(code int) {
	if p.exit == nil {
		p.exit = &oci.Exit{Code: code, At: time.Now()}
		close(p.ended)
	}
}

// named gives an ID the name by which schedules and traces know it.
func (m *machine) named(id, name string) {
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

// violate notes that a promise was broken.
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

// The ways in which an act fails.
const (
	fine   = ""
	fails  = "fails"  // and has done nothing
	half   = "half"   // it fails, and has done what was asked
	hangs  = "hangs"  // until its time is up, and has done nothing
	sticks = "sticks" // until its time is up, and has done what was asked
	slow   = "slow"   // it takes a minute
)

// act is how something that is done will go.
type act struct {
	key   string
	took  time.Duration
	fault string
	early bool // its effect is there at its begin, or only at its end
}

// next says how the next act on an object goes.
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

// chance is the randomness of what has that key.
func (m *machine) chance(key string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return rand.New(rand.NewPCG(m.sched.Seed, h.Sum64()))
}

// errFault is a driver's.
var errFault = errors.New("simulated failure")

// patience is how long what hangs does so without a deadline.
const patience = 3 * time.Minute

// do has a life act on the machine. The effect takes place at once, at the end
// or not at all; nothing takes place once the life is over.
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

// alive runs an effect if the life isn't over.
func (l *life) alive(effect func() error) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.over() {
		return errDead
	}
	return effect()
}

// rel is a path as all lives know it.
func (l *life) rel(path string) string {
	if rest, ok := strings.CutPrefix(path, l.dir+"/"); ok {
		return rest
	}
	return path
}

// dirOf is where a life has its files.
func (m *machine) dirOf(life int) string { return filepath.Join(m.dir, fmt.Sprint("life-", life)) }
