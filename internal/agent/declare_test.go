package agent

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/source"
)

// declared returns a set of pods, each declared in /m/NAME.yaml.
func declared(t testing.TB, metadata string, names ...string) source.Set {
	set := source.Set{Kind: source.File}
	for _, name := range names {
		set.Pods = append(set.Pods, source.Pod{Pod: parse(t, name, metadata), Location: "/m/" + name + ".yaml"})
	}
	return set
}

// waitGone waits until the pod with that UID is gone.
func (h *harness) waitGone(uid string) {
	h.t.Helper()
	w, err := h.worker(uid)
	if err != nil {
		return
	}
	select {
	case <-w.gone:
	case <-h.ctx().Done():
		h.t.Fatalf("pod %s still exists", uid)
	}
}

// wantRefusal checks why a changed pod a of a source isn't run, with --replace or without.
func (h *harness) wantRefusal(from, why string) {
	h.t.Helper()
	changed := parse(h.t, "a", ", labels: {changed: by-hand}")
	for range 2 {
		if _, _, err := h.Apply(h.ctx(), changed, nil, from); !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), why) {
			h.t.Errorf("from %s: %v, want %s", from, err, why)
		}
		if err := h.Replace(changed, from); err != nil {
			h.t.Error(err)
		}
	}
}

func (h *harness) uid(name string) string {
	h.t.Helper()
	p, _, err := h.Find(name)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(p.Manifest.UID)
}

func TestDeclare(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.Declare(declared(t, "", "a", "b"))
	a, b := h.uid("a"), h.uid("b")
	if p, _ := h.Get(a); p.Source != "file:/m/a.yaml" {
		t.Errorf("the source is %s", p.Source)
	}
	err := h.Remove(h.ctx(), a)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "/m/a.yaml") {
		t.Errorf("removing a declared pod: %v", err)
	}
	// Declaring the same again changes nothing, not even for a stopped pod.
	if err := h.Stop(h.ctx(), a, nil); err != nil {
		t.Fatal(err)
	}
	h.Declare(declared(t, "", "a", "b"))
	if p, _ := h.Get(a); p.Want != "stop" {
		t.Errorf("Want is %s", p.Want)
	}
	// a has changed, and b is no longer declared.
	h.Declare(declared(t, ", labels: {v: '2'}", "a"))
	h.waitGone(a)
	h.waitGone(b)
	if p, _, err := h.Find("a"); err != nil || p.Manifest.Labels["v"] != "2" || h.names() != "a" {
		t.Errorf("the pods are %q: %v, %v", h.names(), p.Manifest, err)
	}
}

// A pod whose file can't be read stays after a restart.
func TestDeclareUnread(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.Declare(declared(t, "", "a", "b"))
	a, b := h.uid("a"), h.uid("b")
	h.restart()
	h.Declare(source.Set{Kind: source.File, Unread: []string{"/m/a.yaml"}})
	h.waitGone(b)
	if p, err := h.Get(a); err != nil || p.Want != "run" {
		t.Errorf("%v, %v", p.Want, err)
	}
}

// A declared pod waits until the pod that a user runs under its name is removed.
func TestDeclareNameInUse(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.apply(parse(t, "a", ", labels: {by: hand}"))
	existing := h.uid("a")
	h.Declare(declared(t, "", "a"))
	if p, err := h.Get(existing); err != nil || p.Want != "run" || h.names() != "a" {
		t.Errorf("%q: %v, %v", h.names(), p.Want, err)
	}
	h.wantRefusal("file:/m/a.yaml", "was started by husk run: husk rm -f default/a removes it, and this one starts then")
	if err := h.Remove(h.ctx(), existing); err != nil {
		t.Fatal(err)
	}
	if p, _, err := h.Find("a"); err != nil || p.Source != "file:/m/a.yaml" {
		t.Errorf("after the removal: %v, %v", p.Source, err)
	}
	// husk run --replace can't replace it, so the refusal doesn't say so.
	h.wantRefusal("run", "pod default/a is declared in /m/a.yaml: change it there, or rename one")
	// A pod that is no longer declared is removed, and nothing takes its place.
	uid := h.uid("a")
	h.Declare(source.Set{Kind: source.File})
	h.waitGone(uid)
	if h.names() != "" {
		t.Errorf("the pods are %q", h.names())
	}
}

// TestDeclaredWithUIDOfAnother checks that a declared pod that was refused for its UID runs once
// the pod that has it is gone.
func TestDeclaredWithUIDOfAnother(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.apply(parse(t, "first", ", uid: abcd-1"))
	h.Declare(declared(t, ", uid: abcd-1", "second"))
	if _, _, err := h.Find("second"); !errdefs.IsNotFound(err) {
		t.Fatalf("the second pod with the UID: %v", err)
	}
	if err := h.Remove(h.ctx(), "abcd-1"); err != nil {
		t.Fatal(err)
	}
	h.waitFor("abcd-1", "the second pod", func(p Pod) bool { return p.Manifest.Name == "second" })
}
