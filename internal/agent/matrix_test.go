package agent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
)

// matrix has files, URLs and people declare pods at random, some of one name,
// and knows which must run.
type matrix struct {
	*house
	random *rand.Rand
	// places by kind; a place is where a pod may be declared.
	places map[source.Kind][]*place
	ran    map[string]string // versions by name, of pods that were run by hand
	pods   map[string]*corev1.Pod
}

// place declares a version of a pod, or of none; broken, it can't be read.
type place struct {
	at, name, version string
	broken            bool
	// unsure says that it became unreadable, and the agent was restarted, before
	// its last version ran.
	unsure bool
}

func (m *matrix) pod(name, version string) *corev1.Pod {
	key := name + " " + version
	if m.pods[key] == nil {
		m.pods[key] = parse(m.t, name, ", labels: {v: '"+version+"'}")
	}
	return m.pods[key]
}

// deliver has a source tell what it declares.
func (m *matrix) deliver(kind source.Kind) {
	set := source.Set{Kind: kind}
	for _, p := range m.places[kind] {
		switch {
		case p.broken:
			set.Unread = append(set.Unread, p.at)
		case p.version != "":
			set.Pods = append(set.Pods, source.Pod{Pod: m.pod(p.name, p.version), Location: p.at})
		}
	}
	m.Declare(set)
}

// step does something to the world.
func (m *matrix) step() {
	kind := []source.Kind{source.File, source.File, source.Web}[m.random.IntN(3)]
	p := m.places[kind][m.random.IntN(len(m.places[kind]))]
	version := fmt.Sprint(m.random.IntN(3))
	switch what := m.random.IntN(1000); {
	case what < 350: // added, edited or mended
		p.version, p.broken, p.unsure = version, false, false
		m.deliver(kind)
	case what < 550: // removed
		p.version, p.broken, p.unsure = "", false, false
		m.deliver(kind)
	case what < 700:
		p.broken = true
		m.deliver(kind)
	case what < 750: // a source that tells the same again
		m.deliver(kind)
	case what < 850:
		m.runByHand(version)
	case what < 995:
		m.removeByHand()
	default:
		m.begin()
	}
}

func (m *matrix) runByHand(version string) {
	name := fmt.Sprintf("r%d", m.random.IntN(3))
	if m.ran[name] != "" {
		return // it is there, or being removed
	}
	m.apply(m.pod(name, version))
	m.ran[name] = version
}

func (m *matrix) removeByHand() {
	for name := range m.ran {
		if p, _, err := m.Find(name); err == nil {
			if err := m.Remove(m.ctx(), string(p.Manifest.UID)); err != nil {
				m.t.Fatal(err)
			}
		}
		delete(m.ran, name)
		return
	}
}

// begin restarts the agent: all sources tell what they have once more.
func (m *matrix) begin() {
	for kind, places := range m.places {
		for _, p := range places {
			if p.broken && p.version != "" {
				there, _, err := m.Find(p.name)
				p.unsure = p.unsure || err != nil || there.Want != podplan.Run || there.Source != string(kind)+p.at || there.Manifest.Labels["v"] != p.version
			}
		}
	}
	m.restart()
	m.deliver(source.File)
	m.deliver(source.Web)
}

// off says what runs and should not, or doesn't and should; nothing if all is
// right.
func (m *matrix) off() string {
	allowed, required := map[string][]string{}, map[string]bool{}
	for name, version := range m.ran {
		allowed[name], required[name] = []string{version}, true
	}
	for _, places := range m.places {
		for _, p := range places {
			if p.version == "" {
				continue
			}
			allowed[p.name] = append(allowed[p.name], p.version)
			required[p.name] = required[p.name] || !p.unsure
			if p.unsure {
				allowed[p.name] = append(allowed[p.name], "0", "1", "2")
			}
		}
	}
	seen := map[string]bool{}
	for _, p := range m.List() {
		name, version := p.Manifest.Name, p.Manifest.Labels["v"]
		switch {
		case p.Want != podplan.Run:
			return name + " is still being removed"
		case !slices.Contains(allowed[name], version):
			return fmt.Sprintf("%s runs version %s of %v, from %s", name, version, allowed[name], p.Source)
		case manifest.Hash(p.Manifest) != manifest.Hash(m.pod(name, version)):
			return name + " is not what it was declared to be"
		}
		seen[name] = true
	}
	for name := range required {
		if required[name] && !seen[name] {
			return name + " doesn't run"
		}
	}
	return ""
}

func (m *matrix) converges() {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	for off := m.off(); off != ""; off = m.off() {
		if time.Now().After(deadline) {
			m.t.Fatalf("%s; it runs %s", off, m.names())
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSourceMatrix: whatever sources and people declare, and in whatever order,
// what is declared in the end is what runs.
func TestSourceMatrix(t *testing.T) {
	t.Parallel()
	const steps, look = 10_000, 40
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := &matrix{
		house: open(t), random: rand.New(rand.NewPCG(seed, 0)),
		places: map[source.Kind][]*place{}, ran: map[string]string{}, pods: map[string]*corev1.Pod{},
	}
	// Of the names beginning with s, both kinds have one.
	for kind, names := range map[source.Kind]string{source.File: "f0 f1 f2 f3 s0 s1", source.Web: "u0 u1 s0 s1"} {
		for _, name := range strings.Fields(names) {
			m.places[kind] = append(m.places[kind], &place{at: "/" + name, name: name})
		}
	}
	m.begin()
	for i := range steps {
		m.step()
		if i%look == 0 {
			m.converges()
		}
	}
	m.converges()
}
