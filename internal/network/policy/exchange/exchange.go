// Package exchange tells the nodes of a pod network, which have no API server, what network
// policies need of each other's pods: namespace, name, labels, addresses and named ports.
package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/backoff"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/policy"
)

// Store keeps the nodes' entries by their keys, NODE/NAMESPACE/NAME.
type Store interface {
	// Session returns the session of this node's blocks, to which its entries are bound, or none.
	Session() claim.Session
	// Write sets and removes entries. The error is claim.ErrLost if the session has ended.
	Write(ctx context.Context, session claim.Session, values map[string]string, remove []string) error
	// Follow calls update with all entries, and then with what changes, until ctx ends or the
	// store can't be followed.
	Follow(ctx context.Context, update func(Update)) error
}

// Update is what has changed in the store.
type Update struct {
	All  bool // Set has all entries
	Set  map[string]Entry
	Gone []string
	// Rewinds counts how often the store is known to have lost something. If it has grown, what is
	// missing or gone wasn't removed by anybody.
	Rewinds int
}

// Entry is what the store has by a key.
type Entry struct {
	Value   string
	Session claim.Session
}

// Bounds of what a node tells, and of what is believed of each node.
const (
	maxPods  = 4096
	maxValue = 32 << 10
)

// Config configures an Exchange.
type Config struct {
	Store   Store
	Node    string         // the name of this node
	Subnets []netip.Prefix // of the pods of all nodes: other addresses aren't believed
	Own     func() []*policy.Pod
	// Others takes the pods of the other nodes, each as NAME@NODE, as different nodes may have pods of
	// the same name. The first call comes once the store has answered.
	Others func([]*policy.Pod)
	Log    *slog.Logger
}

// Exchange tells the other nodes of this node's pods, and learns of theirs.
type Exchange struct {
	cfg  Config
	wake chan struct{}

	telling sync.Mutex // held while Others is called

	mu     sync.Mutex                        // Invariant: guards the fields below.
	known  bool                              // the store has answered
	stored map[string]Entry                  // this node's entries in the store
	others map[string]map[string]*policy.Pod // by node and key
	doubts doubts                            // which of them
	// rewinds is that of the last update, and complete that of the last update of all entries. A loss
	// may show itself before the entries are read anew, with which it counts again.
	rewinds, complete int
	warned            bool // about pods that others aren't told of
}

// New returns an Exchange. Run starts it.
func New(cfg Config) *Exchange {
	return &Exchange{cfg: cfg, wake: make(chan struct{}, 1), stored: map[string]Entry{}, others: map[string]map[string]*policy.Pod{}, doubts: doubts{}}
}

// Changed says that this node's pods may have changed. It doesn't block.
func (e *Exchange) Changed() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// firstWait is the first wait before what failed is repeated.
const firstWait = 250 * time.Millisecond

// Run exchanges until ctx ends.
func (e *Exchange) Run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { e.follow(ctx) })
	defer following.Wait()
	failures := 0
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	for {
		err := e.tell(ctx)
		var retry <-chan time.Time
		if err == nil {
			failures = 0
		} else {
			failures++
			retry = time.After(backoff.Wait(firstWait, failures, rand.Float64()))
		}
		for waiting := true; waiting; {
			waiting = false
			select {
			case <-ctx.Done():
				return nil
			case <-e.wake:
			case <-retry:
			case now := <-tick.C:
				e.look(now)
				waiting = true
			}
		}
	}
}

// follow learns what the store has until ctx ends.
func (e *Exchange) follow(ctx context.Context) {
	failures, logged := 0, ""
	for ctx.Err() == nil {
		err := e.cfg.Store.Follow(ctx, func(u Update) {
			failures, logged = 0, ""
			e.learn(u, time.Now())
		})
		if ctx.Err() != nil {
			return
		}
		if text := fmt.Sprint(err); text != logged {
			e.cfg.Log.Warn("network policy: can't follow the pods of other nodes in the store; trying again", "error", err)
			logged = text
		}
		failures++
		select {
		case <-time.After(backoff.Wait(firstWait, failures, rand.Float64())):
		case <-ctx.Done():
		}
	}
}

// learn takes what the store has.
func (e *Exchange) learn(u Update, now time.Time) {
	e.telling.Lock()
	defer e.telling.Unlock()
	e.mu.Lock()
	lost := u.Rewinds > e.rewinds
	e.rewinds = u.Rewinds
	if u.All {
		before := e.others
		e.stored, e.others, e.known = map[string]Entry{}, map[string]map[string]*policy.Pod{}, true
		if u.Rewinds > e.complete {
			for _, of := range before {
				for key := range of {
					e.doubts.lose(key, now)
				}
			}
		}
		e.complete = u.Rewinds
		for key := range e.doubts {
			node, _, _ := strings.Cut(key, "/")
			if p := before[node][key]; p != nil {
				e.add(key, p)
			}
		}
	}
	news := u.All
	for key, entry := range u.Set {
		node, _, _ := strings.Cut(key, "/")
		if node == e.cfg.Node {
			e.stored[key] = entry
			continue
		}
		p, err := parse(key, entry.Value, e.cfg.Subnets)
		for _, wrong := range e.doubts.told(key, p, e.others, now) {
			e.remove(wrong)
		}
		if err == nil && e.others[node][key] == nil && len(e.others[node]) >= maxPods {
			err = fmt.Errorf("node %s has more than %d pods", node, maxPods)
		}
		if err != nil {
			e.cfg.Log.Warn("network policy: what another node says of a pod can't be used", "key", fmt.Sprintf("%.200q", key), "error", err)
			e.remove(key)
		} else {
			e.add(key, p)
		}
		news = true
	}
	for _, key := range u.Gone {
		node, _, _ := strings.Cut(key, "/")
		switch {
		case node == e.cfg.Node:
			delete(e.stored, key)
		case lost:
			e.doubts.lose(key, now)
		default:
			e.remove(key)
			news = true
		}
	}
	others := e.all()
	e.mu.Unlock()
	e.Changed() // what this node tells may have been lost
	if news {
		e.cfg.Others(others)
	}
}

// add adds another node's pod. The caller holds e.mu.
func (e *Exchange) add(key string, p *policy.Pod) {
	node, _, _ := strings.Cut(key, "/")
	if e.others[node] == nil {
		e.others[node] = map[string]*policy.Pod{}
	}
	e.others[node][key] = p
}

// remove removes another node's pod. The caller holds e.mu.
func (e *Exchange) remove(key string) {
	node, _, _ := strings.Cut(key, "/")
	delete(e.doubts, key)
	delete(e.others[node], key)
	if len(e.others[node]) == 0 {
		delete(e.others, node)
	}
}

// all returns the pods of the other nodes. The caller holds e.mu.
func (e *Exchange) all() (others []*policy.Pod) {
	for _, of := range e.others {
		others = slices.AppendSeq(others, maps.Values(of))
	}
	return others
}

// look removes pods that the store has lost and that aren't believed to be there any more.
func (e *Exchange) look(now time.Time) {
	e.telling.Lock()
	defer e.telling.Unlock()
	e.mu.Lock()
	due := e.doubts.due(now)
	for _, key := range due {
		e.remove(key)
	}
	others := e.all()
	e.mu.Unlock()
	if len(due) > 0 {
		e.cfg.Others(others)
	}
}

var errWaiting = errors.New("the store is not known yet")

// tell makes the store have this node's pods.
func (e *Exchange) tell(ctx context.Context) error {
	session := e.cfg.Store.Session()
	want := map[string]string{}
	skipped := 0
	for _, p := range e.cfg.Own() {
		value, err := json.Marshal(recordOf(p))
		if err != nil || len(value) > maxValue || len(want) == maxPods {
			skipped++
			continue
		}
		want[e.cfg.Node+"/"+p.Key()] = string(value)
	}
	e.mu.Lock()
	if skipped > 0 && !e.warned {
		e.cfg.Log.Warn(fmt.Sprintf("network policy: other nodes know only the addresses of some pods: of a node, they learn of %d pods with labels of %d KiB", maxPods, maxValue>>10), "pods", skipped)
	}
	e.warned = skipped > 0
	known := e.known
	var remove []string
	for key, entry := range e.stored {
		value, ok := want[key]
		if !ok {
			remove = append(remove, key)
		} else if value == entry.Value && entry.Session == session {
			delete(want, key)
		}
	}
	e.mu.Unlock()
	if !known || session == "" {
		return errWaiting
	}
	if len(want)+len(remove) == 0 {
		return nil
	}
	if err := e.cfg.Store.Write(ctx, session, want, remove); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, value := range want {
		e.stored[key] = Entry{value, session}
	}
	for _, key := range remove {
		delete(e.stored, key)
	}
	return nil
}

// record is the form of an entry.
type record struct {
	Version   int                `json:"v"`
	Labels    labels.Set         `json:"labels,omitempty"`
	Addresses []netip.Addr       `json:"addresses"`
	Ports     []policy.NamedPort `json:"ports,omitempty"`
	Started   time.Time          `json:"started"`
}

const recordVersion = 1

func recordOf(p *policy.Pod) record {
	return record{recordVersion, p.Labels, p.Addresses, p.Ports, p.Started.UTC().Truncate(time.Second)}
}

// parse reads what another node says of a pod.
func parse(key, value string, subnets []netip.Prefix) (*policy.Pod, error) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return nil, errors.New("the key is not NODE/NAMESPACE/NAME")
	}
	var r record
	if len(value) > maxValue {
		return nil, fmt.Errorf("%d bytes, at most %d", len(value), maxValue)
	}
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return nil, err
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("version %d is not known", r.Version)
	}
	for _, a := range r.Addresses {
		if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			return nil, fmt.Errorf("address %v is not of the pod subnets", a)
		}
	}
	return &policy.Pod{Namespace: parts[1], Name: parts[2] + "@" + parts[0], Labels: r.Labels, Addresses: r.Addresses, Ports: r.Ports, Started: r.Started}, nil
}
