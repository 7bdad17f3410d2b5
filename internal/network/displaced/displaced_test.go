package displaced

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/pod"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a node's pods and what becomes of them.
type world struct {
	mu      sync.Mutex
	pods    []Pod
	marks   map[string]pod.Displacement
	reports []string
	busy    bool // marks can't be replaced now
	full    bool // no pod can get an address
}

func (w *world) set(change func()) { w.mu.Lock(); defer w.mu.Unlock(); change() }

func (w *world) add(sandbox string, external bool, addresses ...string) {
	p := Pod{Sandbox: sandbox, Ref: pod.Ref{Namespace: "default", Name: sandbox}, External: external}
	for _, a := range addresses {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
	}
	w.pods = append(w.pods, p)
}

// replaced returns the pods that are to be made anew.
func (w *world) replaced() (out []string) {
	w.set(func() {
		for _, sandbox := range slices.Sorted(maps.Keys(w.marks)) {
			if w.marks[sandbox].Replace {
				out = append(out, sandbox)
			}
		}
	})
	return out
}

// mark returns the mark of a pod.
func (w *world) mark(sandbox string) (d pod.Displacement) {
	w.set(func() { d = w.marks[sandbox] })
	return d
}

// run runs a Watcher in virtual time.
func run(t *testing.T, w *world, replace bool, test func(*testing.T, *Watcher)) {
	synctest.Test(t, func(t *testing.T) {
		if w.marks == nil {
			w.marks = map[string]pod.Displacement{}
		}
		watcher := New(Config{
			Replace: replace, Log: slog.New(slog.DiscardHandler),
			Pods: func() (out []Pod) { w.set(func() { out = slices.Clone(w.pods) }); return out },
			Mark: func(sandbox string, d pod.Displacement) (ok bool) {
				w.set(func() {
					if ok = !w.busy; ok {
						w.marks[sandbox] = d
					}
				})
				return ok
			},
			Report: func(p Pod, warning bool, reason, message string) {
				w.set(func() { w.reports = append(w.reports, fmt.Sprint(p.Ref, " ", warning, " ", reason, ": ", message)) })
			},
			Spare: func() (err error) {
				w.set(func() {
					if w.full {
						err = errors.New("no block")
					}
				})
				return err
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- watcher.Run(ctx) }()
		test(t, watcher)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func lost(node string, blocks ...string) (out []peer.Lost) {
	for _, b := range blocks {
		out = append(out, peer.Lost{Block: netip.MustParsePrefix(b), Node: node})
	}
	return out
}

func after(d time.Duration) { time.Sleep(d); synctest.Wait() }

// TestReplaced: of a node's pods, those with an address of a block that another node has are marked
// and reported at once, and made anew once that has lasted for a while.
func TestReplaced(t *testing.T) {
	w := &world{}
	w.add("four", false, "10.201.7.2", "fd68::1:2")
	w.add("six", false, "10.201.8.2", "fd68::7:2")
	w.add("neither", false, "10.201.8.3", "fd68::1:3")
	w.add("foreign", true, "10.201.7.3")
	run(t, w, true, func(t *testing.T, watcher *Watcher) {
		after(time.Minute)
		if len(w.marks) > 0 {
			t.Errorf("before anything is known: %v", w.marks)
		}
		watcher.Set(append(lost("b", "10.201.7.0/24"), lost("c", "fd68::7:0/112")...))
		synctest.Wait()
		for sandbox, want := range map[string]string{
			"four": "its address 10.201.7.2 is of block 10.201.7.0/24, which is node b's now", "six": "its address fd68::7:2 is of block fd68::7:0/112, which is node c's now", "neither": "",
		} {
			if got := w.mark(sandbox); !strings.HasPrefix(got.Message, want) || (want == "") != (got.Message == "") || got.Replace || watcher.Why(sandbox) != got.Message {
				t.Errorf("%s has mark %+v, want %q", sandbox, got, want)
			}
		}
		if got := watcher.Why("foreign"); !strings.Contains(got, "have its runtime create it again") {
			t.Errorf("the pod of another runtime: %q", got)
		}
		if len(w.reports) != 3 || !strings.Contains(w.reports[0], "default/four true AddressLost: its address") {
			t.Errorf("reports %q, want one of each pod", w.reports)
		}
		after(confirmTime - interval)
		if got := w.replaced(); len(got) > 0 {
			t.Errorf("%v are replaced early", got)
		}
		after(2 * interval)
		if got := w.replaced(); !slices.Equal(got, []string{"four", "six"}) {
			t.Errorf("%v are replaced", got)
		}
		if len(w.reports) != 3 {
			t.Errorf("reports %q, want one of each pod", w.reports)
		}
	})
}

// TestKept: pods run on if that is configured, or if nobody has their address.
func TestKept(t *testing.T) {
	for node, replace := range map[string]bool{"b": false, "": true} {
		w := &world{}
		w.add("a", false, "10.201.7.2")
		run(t, w, replace, func(t *testing.T, watcher *Watcher) {
			watcher.Set(lost(node, "10.201.7.0/24"))
			after(time.Hour)
			if got := w.mark("a"); got.Replace || !strings.HasSuffix(got.Message, "; remove it and run it again") {
				t.Errorf("node %q, replace %v: mark %+v", node, replace, got)
			}
		})
	}
}

// TestFound: a block that comes back before its pods were made anew leaves them alone, and time
// counts from the beginning when it is lost once more.
func TestFound(t *testing.T) {
	w := &world{}
	w.add("a", false, "10.201.7.2")
	run(t, w, true, func(t *testing.T, watcher *Watcher) {
		for range 3 {
			watcher.Set(lost("b", "10.201.7.0/24"))
			after(confirmTime - interval)
			watcher.Set(nil)
			after(interval)
			if got := w.mark("a"); got != (pod.Displacement{}) {
				t.Fatalf("mark %+v is left", got)
			}
		}
		if n := len(w.reports); n != 6 || !strings.Contains(w.reports[5], "default/a false AddressFound") {
			t.Errorf("reports %q", w.reports)
		}
	})
}

// TestNoOtherAddress: pods wait for a while if no address can be given to them.
func TestNoOtherAddress(t *testing.T) {
	w := &world{full: true}
	w.add("a", false, "10.201.7.2")
	w.add("b", false, "10.201.9.2")
	run(t, w, true, func(t *testing.T, watcher *Watcher) {
		watcher.Set(lost("b", "10.201.7.0/24"))
		after(confirmTime + time.Minute)
		if got := w.replaced(); len(got) > 0 {
			t.Errorf("%v are replaced though there is no other address", got)
		}
		after(spareTime - time.Minute)
		if got := w.replaced(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%v are replaced in the end", got)
		}
		w.set(func() { w.full = false })
		watcher.Set(lost("b", "10.201.7.0/24", "10.201.9.0/24"))
		after(confirmTime + interval)
		if got := w.replaced(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%v are replaced once there is an address", got)
		}
	})
}

// TestNotAllAtOnce: pods are made anew some at a time.
func TestNotAllAtOnce(t *testing.T) {
	w := &world{}
	for i := range 25 {
		w.add(fmt.Sprintf("pod%02d", i), false, fmt.Sprintf("10.201.7.%d", i+2))
	}
	run(t, w, true, func(t *testing.T, watcher *Watcher) {
		watcher.Set(lost("b", "10.201.7.0/24"))
		after(confirmTime + interval/2)
		for _, want := range []int{10, 20, 25, 25} {
			if got := len(w.replaced()); got != want {
				t.Errorf("%d pods are replaced, want %d", got, want)
			}
			after(interval)
		}
	})
}

// TestRestarted: the first view after a restart of huskd removes marks whose reason is gone, also
// of pods that were busy.
func TestRestarted(t *testing.T) {
	stale := pod.Displacement{Message: "as it was"}
	w := &world{marks: map[string]pod.Displacement{"a": stale, "b": stale}, busy: true}
	w.add("a", false, "10.201.7.2")
	w.add("b", false, "10.201.8.2")
	run(t, w, true, func(t *testing.T, watcher *Watcher) {
		after(time.Minute)
		watcher.Set(lost("b", "10.201.7.0/24"))
		after(interval)
		if w.mark("a") != stale || w.mark("b") != stale || len(w.reports) > 0 {
			t.Errorf("marks %v and reports %q while pods are busy", w.marks, w.reports)
		}
		w.set(func() { w.busy = false })
		after(2 * interval)
		if w.mark("a") == stale || w.mark("a").Message == "" || w.mark("b") != (pod.Displacement{}) {
			t.Errorf("marks %v", w.marks)
		}
	})
}
