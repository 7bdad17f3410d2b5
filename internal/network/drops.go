package network

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/huskd/husk/internal/network/datapath"
)

// dropsTime is the time between looks at the counters of dropped packets, and so between lines of
// the log about each reason.
const dropsTime = time.Minute

// Dropped is how many packets the node has dropped for a reason.
type Dropped struct {
	Why   datapath.Drop
	Count uint64
	// Last is when there were more than before, within dropsTime; zero if there were none since huskd
	// was started.
	Last time.Time
}

// drops remembers the counters of dropped packets.
type drops struct {
	mu    sync.Mutex // Invariant: guards the fields below.
	known bool       // the counters were read before
	seen  map[datapath.Drop]Dropped
}

// Dropped returns how many packets were dropped since the rules were first made, in the order of
// datapath.Drops.
func (p Paths) Dropped() ([]Dropped, error) {
	out, _, err := p.n.drops.look(p.n.dp.Dropped, time.Now())
	return out, err
}

// look reads the counters. It returns all of them, and how many packets are new of each reason.
func (d *drops) look(read func() (map[datapath.Drop]uint64, error), now time.Time) (all, added []Dropped, err error) {
	counts, err := read()
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == nil {
		d.seen = map[datapath.Drop]Dropped{}
	}
	for _, why := range datapath.Drops {
		was := d.seen[why]
		is := Dropped{why, counts[why], was.Last}
		if d.known && is.Count > was.Count {
			is.Last = now
			added = append(added, Dropped{why, is.Count - was.Count, now})
		}
		d.seen[why] = is
		all = append(all, is)
	}
	d.known = true
	return all, added, nil
}

// report logs how many packets were dropped, until ctx ends.
func (d *drops) report(ctx context.Context, read func() (map[datapath.Drop]uint64, error), log *slog.Logger) {
	tick := time.NewTicker(dropsTime)
	defer tick.Stop()
	for {
		_, added, err := d.look(read, time.Now())
		if err != nil {
			log.Warn("network: the counters of dropped packets can't be read", "error", err)
		}
		for _, a := range added {
			log.Warn("network: dropped "+a.Why.String(), "packets", a.Count)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
