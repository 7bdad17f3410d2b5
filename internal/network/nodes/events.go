package nodes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/huskd/husk/internal/network/backend"
)

// Event is a change of the way to another node, or to several at once.
type Event struct {
	Warning         bool
	Reason, Message string // a single word and a single line
}

// The reasons of events.
const (
	PathLost     = "NodePathLost"     // no way, or no answer
	PathRestored = "NodePathRestored" // after PathLost
	PathChanged  = "NodePathChanged"  // another way
	StoreLoss    = "NodeStoreLoss"    // the registry has lost records; see peer.View
)

const (
	// eventPeriod is the time between looks at the peers' answers.
	eventPeriod = 2 * time.Second
	// Events are limited to eventBurst at once and one each eventPause.
	eventPause, eventBurst = 10 * time.Second, 20
	// maxNamed is how many peers one event names. If the same happens to more of them at one time,
	// there is one event of all.
	maxNamed = 3
)

// pathState is what was last said about the path to a peer.
type pathState struct {
	way  backend.Way
	lost bool
}

// paths tells what has changed about the paths to peers. It is pure.
type paths map[string]pathState

// compare returns the events since the last call. The first state of a peer isn't an event, and
// neither is that a peer has left.
func (p paths) compare(st Status, now time.Time) (events []Event) {
	peers, silence := st.Peers, st.Silence()
	happened := map[string][]string{} // names and messages by reason
	names := map[string][]string{}
	worse := false
	say := func(reason, name, format string, args ...any) {
		names[reason] = append(names[reason], name)
		happened[reason] = append(happened[reason], fmt.Sprintf("node %s ", name)+fmt.Sprintf(format, args...))
	}
	present := make(map[string]bool, len(peers))
	for i := range peers {
		peer := &peers[i]
		present[peer.Name] = true
		was, known := p[peer.Name]
		is := pathState{peer.Way, peer.Way == "" || peer.Silent(now, silence)}
		if is == was && known {
			continue
		}
		p[peer.Name] = is
		switch {
		case !known:
		case is.lost && !was.lost && is.way == "":
			say(PathLost, peer.Name, "can't be reached: %s", peer.Why)
		case is.lost && !was.lost:
			say(PathLost, peer.Name, "has stopped answering, by %s", is.way)
		case !is.lost && was.lost:
			say(PathRestored, peer.Name, "answers again, by %s", is.way)
		case is.way != was.way && peer.Why != "":
			say(PathChanged, peer.Name, "is now reached by %s instead of %s (%s)", is.way, was.way, peer.Why)
			worse = true
		case is.way != was.way:
			say(PathChanged, peer.Name, "is now reached by %s instead of %s", is.way, was.way)
		}
	}
	for name := range p {
		if !present[name] {
			delete(p, name)
		}
	}
	for _, reason := range []string{PathLost, PathChanged, PathRestored} {
		messages := happened[reason]
		if more := len(messages) - maxNamed; more > 0 {
			messages = []string{fmt.Sprintf("%s and %d more nodes: for example, %s", strings.Join(names[reason][:maxNamed], ", "), more, messages[0])}
		}
		for _, m := range messages {
			events = append(events, Event{Warning: reason == PathLost || reason == PathChanged && worse, Reason: reason, Message: m})
		}
	}
	return events
}

// reportEvents logs changes of the paths to peers, and passes them on, until ctx ends.
func (c *Controller) reportEvents(ctx context.Context) error {
	limit := rate.NewLimiter(rate.Every(eventPause), eventBurst)
	said, dropped := paths{}, 0
	tick := time.NewTicker(eventPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		events := said.compare(c.Status(), time.Now())
		if loss := c.takeLoss(); loss != "" {
			events = append(events, Event{Warning: true, Reason: StoreLoss, Message: loss})
		}
		for _, e := range events {
			if !limit.Allow() {
				dropped++
				continue
			}
			if dropped > 0 {
				e.Message += fmt.Sprintf("; %d changes before weren't reported", dropped)
				dropped = 0
			}
			if e.Warning {
				c.cfg.Log.Warn("pod network of other nodes: " + e.Message)
			} else {
				c.cfg.Log.Info("pod network of other nodes: " + e.Message)
			}
			if c.cfg.Event != nil {
				c.cfg.Event(e)
			}
		}
	}
}

// takeLoss returns what the registry has lost since the last call.
func (c *Controller) takeLoss() (loss string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	loss, c.loss = c.loss, ""
	return loss
}
