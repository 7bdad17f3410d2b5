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
	"github.com/huskd/husk/internal/manifest/identity"
)

// matrix declares pods at random in files, at URLs and by hand, some under the same name, and knows
// which must run.
type matrix struct {
	*harness
	random *rand.Rand
	// places are where a pod can be declared, by kind of source.
	places map[source.Kind][]*place
	ran    map[string]string // versions of the pods that were run by hand, by name
	pods   map[string]*corev1.Pod
}

// place declares a version of a pod, or none if version is empty.
type place struct {
	at, name, version string
	broken            bool // it can't be read
	// unsure says that the place became unreadable and the agent restarted before the last version
	// ran.
	unsure bool
}

func (m *matrix) pod(name, version string) *corev1.Pod {
	key := name + " " + version
	if m.pods[key] == nil {
		m.pods[key] = parse(m.t, name, ", labels: {v: '"+version+"'}")
	}
	return m.pods[key]
}

// deliver declares the pods of a source.
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

// step changes one place, runs or removes a pod by hand, or restarts the agent.
func (m *matrix) step() {
	kind := []source.Kind{source.File, source.File, source.Web}[m.random.IntN(3)]
	p := m.places[kind][m.random.IntN(len(m.places[kind]))]
	version := fmt.Sprint(m.random.IntN(3))
	switch what := m.random.IntN(1000); {
	case what < 350: // add, edit or repair
		p.version, p.broken, p.unsure = version, false, false
		m.deliver(kind)
	case what < 550: // remove
		p.version, p.broken, p.unsure = "", false, false
		m.deliver(kind)
	case what < 700:
		p.broken = true
		m.deliver(kind)
	case what < 750: // declare the same again
		m.deliver(kind)
	case what < 850:
		m.runByHand(version)
	case what < 995:
		m.removeByHand()
	default:
		m.restartAgent()
	}
}

func (m *matrix) runByHand(version string) {
	name := fmt.Sprintf("r%d", m.random.IntN(3))
	if m.ran[name] != "" {
		return // it exists or is being removed
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

// restartAgent restarts the agent, after which all sources declare their pods again.
func (m *matrix) restartAgent() {
	for kind, places := range m.places {
		for _, p := range places {
			if p.broken && p.version != "" {
				existing, _, err := m.Find(p.name)
				p.unsure = p.unsure || err != nil || existing.Want != podplan.Run || existing.Source != string(kind)+p.at || existing.Manifest.Labels["v"] != p.version
			}
		}
	}
	m.restart()
	m.deliver(source.File)
	m.deliver(source.Web)
}

// deviation returns how the pods that run differ from those that should; it is empty if they don't.
func (m *matrix) deviation() string {
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
		case identity.Hash(p.Manifest) != identity.Hash(m.pod(name, version)):
			return name + " runs with another manifest than declared"
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

// converge waits until the right pods run.
func (m *matrix) converge() {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	for d := m.deviation(); d != ""; d = m.deviation() {
		if time.Now().After(deadline) {
			m.t.Fatalf("%s; the pods are %s", d, m.names())
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSourceMatrix checks that the pods that are declared in the end run, whatever was declared
// before and in whatever order.
func TestSourceMatrix(t *testing.T) {
	t.Parallel()
	const steps, checkEvery = 10_000, 40
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := &matrix{
		harness: newHarness(t), random: rand.New(rand.NewPCG(seed, 0)),
		places: map[source.Kind][]*place{}, ran: map[string]string{}, pods: map[string]*corev1.Pod{},
	}
	// Both kinds of source declare the names that begin with s.
	for kind, names := range map[source.Kind]string{source.File: "f0 f1 f2 f3 s0 s1", source.Web: "u0 u1 s0 s1"} {
		for _, name := range strings.Fields(names) {
			m.places[kind] = append(m.places[kind], &place{at: "/" + name, name: name})
		}
	}
	m.restartAgent()
	for i := range steps {
		m.step()
		if i%checkEvery == 0 {
			m.converge()
		}
	}
	m.converge()
}
