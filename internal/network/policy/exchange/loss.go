package exchange

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/network/policy"
)

const (
	// lostTime is how long pods are believed to be there that the store has lost, if their node
	// doesn't say anything. So long, the node keeps its addresses; see claim.State.
	lostTime = 24 * time.Hour
	// toldTime is how long after it has said something.
	toldTime = time.Minute
	// lookTime is the time between looks at what isn't believed any more.
	lookTime = 10 * time.Second
)

// doubts are the keys of pods that the store has lost, and until when they are believed to be
// there.
type doubts map[string]time.Time

// lose keeps what the store has lost.
func (d doubts) lose(key string, now time.Time) { d[key] = now.Add(lostTime) }

// told takes what a node says of a pod, and returns the keys of pods that can't be there as well:
// they have one of its addresses.
func (d doubts) told(key string, p *policy.Pod, pods map[string]map[string]*policy.Pod, now time.Time) (wrong []string) {
	if len(d) == 0 {
		return nil
	}
	delete(d, key)
	node, _, _ := strings.Cut(key, "/")
	for other, until := range d {
		of, _, _ := strings.Cut(other, "/")
		if soon := now.Add(toldTime); of == node && until.After(soon) {
			d[other] = soon
		}
		if was := pods[of][other]; p != nil && was != nil && slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return slices.Contains(was.Addresses, a) }) {
			wrong = append(wrong, other)
		}
	}
	return wrong
}

// due returns the keys that aren't believed any more, and forgets them.
func (d doubts) due(now time.Time) (keys []string) {
	for key, until := range d {
		if !now.Before(until) {
			keys = append(keys, key)
		}
	}
	maps.DeleteFunc(d, func(_ string, until time.Time) bool { return !now.Before(until) })
	return keys
}
