package objects

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
)

const file = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: %s}
---
apiVersion: v1
kind: Secret
metadata: {name: login, namespace: shop}
stringData: {user: me}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {tier: front}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {}}
`

func parse(t *testing.T, text string) manifest.File {
	t.Helper()
	f, err := manifest.Parse([]byte(text), manifest.Origin{File: "f.yaml", Source: "run", Policies: true})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// store is a Store with what it has delivered last.
type store struct {
	*Store
	deliveries int
	set        source.Set
	all        manifest.Objects
}

func open(t *testing.T, j *journal.Journal) *store {
	t.Helper()
	s := &store{}
	s.Store = New(Config{Journal: j, Policies: true, Deliver: func(set source.Set, all manifest.Objects) {
		s.deliveries++
		s.set, s.all = set, all
	}})
	if bad := s.Load(); len(bad) > 0 {
		t.Fatal(bad)
	}
	return s
}

func (s *store) color() string {
	return string(s.all[manifest.ObjectKey(manifest.KindConfigMap, "default", "settings")]["color"])
}

func TestStore(t *testing.T) {
	j, _, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	s := open(t, j)
	blue := parse(t, fmt.Sprintf(file, "blue"))
	if unchanged, err := s.Keep(t.Context(), blue.Documents, "f.yaml"); err != nil || slices.Contains(unchanged, true) {
		t.Fatal(unchanged, err)
	}
	check := func(when, color string) {
		t.Helper()
		if s.set.Kind != source.Run || len(s.set.Policies) != 1 || s.set.Namespaces["shop"]["tier"] != "front" || len(s.all) != 2 || s.color() != color {
			t.Errorf("%s: %+v, %v", when, s.set, s.all)
		}
	}
	check("kept", "blue")
	if unchanged, err := s.Keep(t.Context(), blue.Documents, "f.yaml"); err != nil || slices.Contains(unchanged, false) || s.deliveries != 1 {
		t.Error("kept again:", unchanged, err, s.deliveries)
	}

	s = open(t, j) // as the next huskd does
	s.Start()
	check("loaded", "blue")
	green := parse(t, fmt.Sprintf(file, "green"))
	if unchanged, err := s.Keep(t.Context(), green.Documents, "f.yaml"); err != nil || !slices.Equal(unchanged, []bool{false, true, true, true}) {
		t.Error("changed:", unchanged, err)
	}
	check("changed", "green")
	var names []string
	for _, o := range s.List() {
		names = append(names, refOf(manifest.Document{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}).String())
		if parsed, ok := ParseName(names[len(names)-1]); !ok || parsed.Kind != o.Kind || parsed.Namespace != o.Namespace || parsed.Name != o.Name {
			t.Errorf("%s is read as %+v", names[len(names)-1], parsed)
		}
	}
	if got := strings.Join(names, " "); got != "configmap/default/settings namespace/shop networkpolicy/default/closed secret/shop/login" {
		t.Error("listed:", got)
	}

	// The manifests directory comes first, and nothing may contradict it.
	directory := source.NewSet(source.File)
	red := parse(t, strings.Split(fmt.Sprintf(file, "red"), "---\n")[0])
	directory.Add(&red)
	s.Declare(directory)
	if s.set.Kind != source.File || s.color() != "red" || len(s.all) != 2 {
		t.Errorf("declared by the directory: %+v, %v", s.set, s.all)
	}
	if _, err := s.Keep(t.Context(), blue.Documents, "f.yaml"); !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "configmap/default/settings is declared in the manifests directory") {
		t.Error("a contradiction:", err)
	}
	s.Declare(source.NewSet(source.File))
	if s.color() != "green" {
		t.Error("without the directory:", s.all)
	}

	all := s.List()
	if err := s.Remove(t.Context(), all...); err != nil || len(s.set.Policies)+len(s.all)+len(s.List()) > 0 {
		t.Error("removed:", err, s.set, s.all)
	}
	if err := s.Remove(t.Context(), all[0]); !errdefs.IsNotFound(err) {
		t.Error("removed twice:", err)
	}
	if s = open(t, j); len(s.List()) > 0 {
		t.Error("after a removal, the next huskd has", s.List())
	}
}

// TestUnreadablePolicy checks that a store whose record of a policy can't be read doubts its set,
// also at later starts, until the policy is kept again or removed.
func TestUnreadablePolicy(t *testing.T) {
	j, _, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	s := open(t, j)
	policy := parse(t, file[strings.LastIndex(file, "---\n")+4:])
	closed := Object{Kind: manifest.KindNetworkPolicy, Namespace: "default", Name: "closed"}
	for _, settle := range []func() error{
		func() error { _, err := s.Keep(t.Context(), policy.Documents, "f.yaml"); return err },
		func() error { return s.Remove(t.Context(), closed) },
	} {
		if err := j.Put("object/NetworkPolicy/default/closed", []byte("{")); err != nil {
			t.Fatal(err)
		}
		for start := range 2 {
			s = &store{}
			s.Store = New(Config{Journal: j, Policies: true, Deliver: func(set source.Set, _ manifest.Objects) { s.set = set }})
			if bad := s.Load(); len(bad) != 1-start {
				t.Errorf("start %d: %v", start, bad)
			}
			s.Start()
			if want := []string{"the record of networkpolicy/default/closed can't be read"}; !slices.Equal(s.set.Doubts, want) {
				t.Errorf("start %d: doubts %q", start, s.set.Doubts)
			}
		}
		if err := settle(); err != nil || len(s.set.Doubts) > 0 {
			t.Errorf("settled: %v, doubts %q", err, s.set.Doubts)
		}
	}
	if err := s.Remove(t.Context(), closed); !errdefs.IsNotFound(err) {
		t.Errorf("removed twice: %v", err)
	}
}
