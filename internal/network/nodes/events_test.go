package nodes_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/peer"
)

// TestEvents lets a peer go silent, come back and be reached by another way and back.
func TestEvents(t *testing.T) {
	start(t, func(w *world, _ *nodes.Controller) {
		view := peer.View{Blocks: blocks("10.201.1.0/24"), Peers: []*peer.Node{record("b", "192.0.2.2", "10.201.2.0/24"), record("c", "198.51.100.3", "10.201.3.0/24")}}
		answers := func(h heartbeat.Health) {
			h.Answered = true
			if h.Last.IsZero() {
				h.Last = time.Now().Add(time.Hour)
			}
			w.set(func() { w.health = map[string]heartbeat.Health{"b": h} })
			w.changed()
			w.after(5 * time.Second)
		}
		w.see(view)
		w.after(5 * time.Second)
		answers(heartbeat.Health{})
		answers(heartbeat.Health{Last: time.Now().Add(-time.Minute)})
		answers(heartbeat.Health{})
		answers(heartbeat.Health{Broken: []backend.Way{backend.Direct}})
		answers(heartbeat.Health{})
		view.Peers = []*peer.Node{view.Peers[0], record("c", "2001:db8::3", "10.201.3.0/24")}
		w.see(view)
		w.after(5 * time.Second)
		view.Peers = view.Peers[:1] // c has left
		w.see(view)
		w.after(time.Hour)
		want := []string{
			"true NodePathLost: node b has stopped answering, by direct",
			"false NodePathRestored: node b answers again, by direct",
			"true NodePathChanged: node b is now reached by vxlan instead of direct (not direct: no answer from the peer by it)",
			"false NodePathChanged: node b is now reached by direct instead of vxlan",
			"true NodePathLost: node c can't be reached: ",
		}
		var got []string
		for _, e := range w.events {
			got = append(got, fmt.Sprintf("%t %s: %s", e.Warning, e.Reason, e.Message))
		}
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestLoss: there is one event when the registry has lost something, and a note until all is there
// again.
func TestLoss(t *testing.T) {
	start(t, func(w *world, c *nodes.Controller) {
		view := peer.View{Blocks: blocks("10.201.1.0/24"), Peers: []*peer.Node{record("b", "192.0.2.2", "10.201.2.0/24")}}
		noted := func() bool { return slices.Contains(c.Status().Notes, "the store had lost something") }
		for i := range 2 {
			view.Loss = "the store had lost something"
			w.see(view)
			w.after(5 * time.Second)
			view.Notes = []string{fmt.Sprint(i)}
			w.see(view)
			w.after(time.Minute)
			if !noted() {
				t.Error("there is no note")
			}
			view.Loss = ""
			w.see(view)
			w.after(time.Minute)
			if noted() {
				t.Error("the note stays")
			}
		}
		if len(w.events) != 2 || w.events[1] != (nodes.Event{Warning: true, Reason: nodes.StoreLoss, Message: "the store had lost something"}) {
			t.Errorf("got %+v", w.events)
		}
		if got := strings.Count(w.log.String(), "the store had lost something"); got != 2 {
			t.Errorf("it is logged %d times:\n%s", got, w.log.String())
		}
	})
}

// TestManyEvents lets all peers go silent at once, and one of them again and again.
func TestManyEvents(t *testing.T) {
	start(t, func(w *world, _ *nodes.Controller) {
		var peers []*peer.Node
		for i := range 1000 {
			peers = append(peers, record(fmt.Sprintf("n%04d", i), fmt.Sprintf("198.51.%d.%d", i/250, 1+i%250), fmt.Sprintf("10.201.%d.%d/30", i/64, i%64*4)))
		}
		silent := func(last time.Time, peers []*peer.Node) {
			health := map[string]heartbeat.Health{}
			for _, p := range peers {
				health[p.Name] = heartbeat.Health{Answered: true, Last: last}
			}
			w.set(func() { w.health = health })
			w.after(2 * time.Second)
		}
		w.see(peer.View{Blocks: blocks("10.201.255.0/24"), Peers: peers})
		w.after(5 * time.Second)
		now := time.Now()
		silent(now.Add(24*time.Hour), peers)
		silent(now.Add(-time.Hour), peers)
		if len(w.events) != 1 || w.events[0].Message != "n0000, n0001, n0002 and 997 more nodes: for example, node n0000 has stopped answering, by vxlan" {
			t.Errorf("got %v", w.events)
		}
		for range 500 {
			silent(now.Add(24*time.Hour), peers[:1])
			silent(now.Add(-time.Hour), peers[:1])
		}
		if n := len(w.events); n < 100 || n > 250 {
			t.Errorf("%d events", n)
		}
		if !slices.ContainsFunc(w.events, func(e nodes.Event) bool { return strings.Contains(e.Message, "changes before weren't reported") }) {
			t.Error("no event tells of those that were left out")
		}
	})
}
