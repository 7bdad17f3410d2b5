package compile

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/huskd/husk/internal/network/policy"
)

// bit is one property of an address that rules in use can ask for: that a selector selects it, that
// networks contain it, or that the pod there has a certain port of a certain name.
type bit uint64

// portBit marks the bits of named ports. They hold the number of the criterion, the protocol and
// the port.
const portBit bit = 1 << 63

// portName is how a rule names a port of the destination.
type portName struct {
	name     string
	protocol policy.Protocol // 0 for any
}

func (n portName) matches(p policy.NamedPort) bool {
	return n.name == p.Name && p.Protocol.HasPorts() && (n.protocol == 0 || n.protocol == p.Protocol)
}

// criterion is something by which rules in use tell addresses apart. Rules that ask for the same
// share it.
type criterion struct {
	key string
	bit bit // of a port's name, the first of its bits
	// refs counts the rules that use it.
	refs int
	// settled is set once signatures have its bit.
	settled bool
	// One is set.
	pods     *policy.PodSelector
	nodes    labels.Selector
	networks []*policy.Networks // all of a rule's
	port     *portName
}

// criteria are all that are in use.
type criteria struct {
	byKey map[string]*criterion
	last  uint32 // the number of the last that was made
	index *index // of those that select pods
	names []*criterion
	// added are those that no signature has yet.
	added []*criterion
	// released are those that had no user at some time since they were swept.
	released []*criterion
}

// peer returns the criterion of a peer, or nil if the peer is nobody.
func (c *criteria) peer(p *policy.Peer) *criterion {
	switch {
	case p.Networks != nil:
		if !p.Networks.Prefix.IsValid() {
			return nil
		}
		return c.networks([]*policy.Networks{p.Networks})
	case p.Nodes != nil:
		if _, ok := p.Nodes.Requirements(); !ok {
			return nil
		}
		return c.acquire("nodes "+selectorKey(p.Nodes), criterion{nodes: p.Nodes})
	case p.Pods != nil:
		if s := p.Pods; selectable(s) {
			return c.acquire("pods "+strconv.Quote(s.Namespace)+namespacesKey(s)+" "+selectorKey(s.Pods), criterion{pods: s})
		}
	}
	return nil
}

// networks returns the criterion of an address that one of the networks contains.
func (c *criteria) networks(all []*policy.Networks) *criterion {
	keys := make([]string, len(all))
	for i, n := range all {
		keys[i] = networksKey(n)
	}
	slices.Sort(keys)
	return c.acquire("networks "+strings.Join(slices.Compact(keys), ","), criterion{networks: all})
}

// portName returns the criterion of a destination's named port.
func (c *criteria) portName(n portName) *criterion {
	return c.acquire("port "+strconv.Quote(n.name)+strconv.Itoa(int(n.protocol)), criterion{port: &n})
}

func (c *criteria) acquire(key string, like criterion) *criterion {
	found := c.byKey[key]
	if found == nil {
		c.last++
		found = &like
		found.key, found.bit = key, bit(c.last)
		if like.port != nil {
			found.bit = portBit | bit(c.last)<<24
		}
		c.byKey[key] = found
		c.added = append(c.added, found)
	}
	found.refs++
	return found
}

func (c *criteria) release(old *criterion) {
	if old.refs--; old.refs == 0 {
		c.released = append(c.released, old)
	}
}

// askForNodes reports whether a criterion is about nodes.
func (c *criteria) askForNodes() bool {
	for _, found := range c.byKey {
		if found.nodes != nil {
			return true
		}
	}
	return false
}

// settle makes the added criteria part of what pods are matched with, and returns them.
func (c *criteria) settle() []*criterion {
	added := c.added
	for _, a := range added {
		a.settled = true
		switch {
		case a.pods != nil:
			c.index.add(a)
		case a.port != nil:
			c.names = append(c.names, a)
		}
	}
	c.added = nil
	return added
}

// sweep removes the criteria that nothing uses, and returns them.
func (c *criteria) sweep() []*criterion {
	var gone []*criterion
	for _, r := range c.released {
		if r.refs == 0 && c.byKey[r.key] == r {
			delete(c.byKey, r.key)
			gone = append(gone, r)
		}
	}
	c.released = nil
	if len(gone) == 0 {
		return nil
	}
	c.index = newIndex()
	for _, left := range c.byKey {
		if left.pods != nil {
			c.index.add(left)
		}
	}
	c.names = slices.DeleteFunc(c.names, func(n *criterion) bool { return n.refs == 0 })
	return gone
}

// selectable reports whether a selector can select any pod. A missing selector doesn't.
func selectable(s *policy.PodSelector) bool {
	if s.Namespace == "" {
		if s.Namespaces == nil {
			return false
		}
		if _, ok := s.Namespaces.Requirements(); !ok {
			return false
		}
	}
	if s.Pods == nil {
		return false
	}
	_, ok := s.Pods.Requirements()
	return ok
}

// selectorKey is equal for equal selectors only. They are selectable.
func selectorKey(s labels.Selector) string {
	var out strings.Builder
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		out.WriteString(strconv.Quote(r.Key()) + string(r.Operator()))
		for _, v := range r.Values().List() {
			out.WriteString(strconv.Quote(v))
		}
		out.WriteByte(',')
	}
	return out.String()
}

func namespacesKey(s *policy.PodSelector) string {
	if s.Namespace != "" {
		return ""
	}
	return selectorKey(s.Namespaces)
}

func networksKey(n *policy.Networks) string {
	except := make([]string, 0, len(n.Except))
	for _, e := range n.Except {
		if e.IsValid() {
			except = append(except, e.Masked().String())
		}
	}
	slices.Sort(except)
	return n.Prefix.Masked().String() + " " + strings.Join(slices.Compact(except), " ")
}

// index finds the selectors that may select a pod.
type index struct {
	named    map[string]*level // of one namespace
	labelled map[string]*labelledLevel
	// levels are those of a namespace, as far as they were asked for.
	levels map[string][]*level
}

// labelledLevel is a level of all namespaces with certain labels.
type labelledLevel struct {
	namespaces labels.Selector
	level
}

// level has selectors that differ in the labels of pods only.
type level struct {
	byLabel map[string]map[string][]*criterion // by a key and value that a pod must have
	rest    []*criterion
}

func newIndex() *index {
	return &index{map[string]*level{}, map[string]*labelledLevel{}, map[string][]*level{}}
}

func (x *index) add(c *criterion) {
	if name := c.pods.Namespace; name != "" {
		if x.named[name] == nil {
			x.named[name] = &level{}
			delete(x.levels, name)
		}
		x.named[name].add(c)
		return
	}
	key := selectorKey(c.pods.Namespaces)
	if x.labelled[key] == nil {
		x.labelled[key] = &labelledLevel{namespaces: c.pods.Namespaces}
		clear(x.levels)
	}
	x.labelled[key].add(c)
}

// maxValues is how many values of a label a selector may have to be found by each.
const maxValues = 16

func (l *level) add(c *criterion) {
	var key string
	var values []string
	requirements, _ := c.pods.Pods.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if v := r.Values().List(); len(v) <= maxValues && (values == nil || len(v) < len(values)) {
				key, values = r.Key(), v
			}
		}
	}
	if values == nil {
		l.rest = append(l.rest, c)
		return
	}
	if l.byLabel == nil {
		l.byLabel = map[string]map[string][]*criterion{}
	}
	if l.byLabel[key] == nil {
		l.byLabel[key] = map[string][]*criterion{}
	}
	for _, v := range values {
		l.byLabel[key][v] = append(l.byLabel[key][v], c)
	}
}

// relabelled makes the index forget the labels of a namespace.
func (x *index) relabelled(namespace string) { delete(x.levels, namespace) }

// match appends the bits of the selectors that select a pod.
func (x *index) match(out []bit, p *policy.Pod, namespace labels.Set) []bit {
	levels, ok := x.levels[p.Namespace]
	if !ok {
		if l := x.named[p.Namespace]; l != nil {
			levels = append(levels, l)
		}
		for _, l := range x.labelled {
			if l.namespaces.Matches(namespace) {
				levels = append(levels, &l.level)
			}
		}
		x.levels[p.Namespace] = levels
	}
	for _, l := range levels {
		out = l.match(out, p.Labels)
	}
	return out
}

func (l *level) match(out []bit, pod labels.Set) []bit {
	out = matching(out, l.rest, pod)
	if len(l.byLabel) <= len(pod) {
		for key, byValue := range l.byLabel {
			if value, ok := pod[key]; ok {
				out = matching(out, byValue[value], pod)
			}
		}
		return out
	}
	for key, value := range pod {
		out = matching(out, l.byLabel[key][value], pod)
	}
	return out
}

func matching(out []bit, candidates []*criterion, pod labels.Set) []bit {
	for _, c := range candidates {
		if c.pods.Pods.Matches(pod) {
			out = append(out, c.bit)
		}
	}
	return out
}

// named appends the bits of the pod's ports that the names match.
func named(out []bit, names []*criterion, p *policy.Pod) []bit {
	for _, n := range names {
		for _, q := range p.Ports {
			if n.port.matches(q) {
				out = append(out, n.bit|bit(q.Protocol)<<16|bit(q.Port))
			}
		}
	}
	return out
}

// bounds returns the first and the last address of a prefix.
func bounds(p netip.Prefix) (first, last netip.Addr) {
	first = p.Masked().Addr()
	b := first.AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ = netip.AddrFromSlice(b)
	return first, last
}
