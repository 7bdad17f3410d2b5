package compile

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// signature is the set of an address's bits, in order. Equal signatures are the same pointer.
type signature struct {
	bits []bit
	key  string
	// refs counts the pods and ranges that have it.
	refs int
	// next is what it becomes while bits are removed.
	next *signature
}

// class is what addresses with the same signatures are: those of the pod there and of the networks
// and nodes, either of which may be nil for none. An address without a pod, or with one that has no
// bits, is of the class of its range.
type class struct {
	classKey
	id Identity
	// slot is its place in the tables of profiles.
	slot int
	// size counts the addresses and ranges.
	size int
}

type classKey struct{ pod, network *signature }

// The kinds of classes, which have different numbers.
const (
	ofRanges = iota
	ofPods
)

var (
	firstOf    = [2]Identity{ruleset.World + 1, ruleset.FirstPod}
	unnumbered = [2]Identity{firstOf[ofRanges] - 1, firstOf[ofPods] - 1}
)

func (k classKey) kind() int {
	if k.pod != nil {
		return ofPods
	}
	return ofRanges
}

func kindOf(id Identity) int {
	if id.IsPod() {
		return ofPods
	}
	return ofRanges
}

// Identity is short for ruleset.Identity.
type Identity = ruleset.Identity

// move is of addresses or ranges from one class to another, or to or from none.
type move struct{ from, to *class }

// classes are the partition of all addresses.
type classes struct {
	signatures map[string]*signature
	unused     []*signature // had no refs at some time since they were swept
	byKey      map[classKey]*class
	byID       map[Identity]*class
	lastID     [2]Identity // of ranges and of pods
	// former has the numbers to keep, until there is a class, and claims are to those.
	former *ruleset.Ruleset
	claims []claim
	slots  int
	free   []int // slots
	// moves are those since number.
	moves map[move]int
	// changed are the numbers whose class is another than the kernel's, which is the value.
	changed map[Identity]*class
	// buried are those since the last update, whose slots are still in use.
	buried []*class
	// renumbered is set if a class that the kernel has may have another number there.
	renumbered bool
	scratch    []byte
}

func newClasses() *classes {
	world := &class{size: 1}
	return &classes{
		signatures: map[string]*signature{}, byKey: map[classKey]*class{{}: world}, byID: map[Identity]*class{ruleset.World: world},
		lastID: unnumbered, slots: 1, moves: map[move]int{}, changed: map[Identity]*class{},
	}
}

// signature returns that of bits, which it sorts. It is nil if there are none.
func (c *classes) signature(bits []bit) *signature {
	if len(bits) == 0 {
		return nil
	}
	slices.Sort(bits)
	bits = slices.Compact(bits)
	c.scratch = c.scratch[:0]
	for _, b := range bits {
		c.scratch = binary.LittleEndian.AppendUint64(c.scratch, uint64(b))
	}
	s := c.signatures[string(c.scratch)]
	if s == nil {
		s = &signature{bits: slices.Clone(bits), key: string(c.scratch)}
		c.signatures[s.key] = s
		c.unused = append(c.unused, s)
	}
	return s
}

// hold replaces a signature that something has.
func (c *classes) hold(old, s *signature) {
	if s != nil {
		s.refs++
	}
	if old != nil {
		if old.refs--; old.refs == 0 {
			c.unused = append(c.unused, old)
		}
	}
}

// sweep forgets signatures that nothing has.
func (c *classes) sweep() {
	for _, s := range c.unused {
		if s.refs == 0 {
			delete(c.signatures, s.key)
		}
	}
	c.unused = nil
}

// class returns that of signatures.
func (c *classes) class(key classKey) *class {
	found := c.byKey[key]
	if found == nil {
		found = &class{classKey: key}
		if n := len(c.free); n > 0 {
			found.slot, c.free = c.free[n-1], c.free[:n-1]
		} else {
			found.slot = c.slots
			c.slots++
		}
		c.byKey[key] = found
	}
	return found
}

// move records that an address or range goes from one class to another.
func (c *classes) move(from, to *class) {
	c.moves[move{from, to}]++
	if from != nil {
		from.size--
	}
	if to != nil {
		to.size++
	}
}

// number gives numbers to classes after all moves. If rules have learned to tell more or fewer
// addresses apart, the classes that were split or joined share out their numbers, so that most
// addresses keep theirs. Otherwise, no class's number changes.
func (c *classes) number(learned bool) {
	switch {
	case c.claims != nil:
		c.grant(c.claims)
		c.claims = nil
	case learned:
		c.share()
	default:
		c.inherit()
	}
	for m := range c.moves {
		for _, k := range []*class{m.from, m.to} {
			if k != nil && k.id == 0 && k.size > 0 {
				c.set(c.next(k.kind()), k)
			}
		}
	}
	empty(&c.moves)
}

// next returns a number that no class has.
func (c *classes) next(kind int) Identity {
	last := &c.lastID[kind]
	for {
		// When they are used up, old ones are reused.
		if *last++; *last == ruleset.FirstPod || last.IsGroup() {
			*last = firstOf[kind]
		}
		if c.byID[*last] == nil {
			return *last
		}
	}
}

// claim is that of a class to a number, as count of its addresses and ranges have had it.
type claim struct {
	id    Identity
	to    *class
	count int
}

// share gives the numbers of the classes that took part in moves to those of them that have most of
// the addresses of each.
func (c *classes) share() {
	arrived := map[*class]int{}
	var claims []claim
	for m, count := range c.moves {
		if m.to != nil {
			arrived[m.to] += count
		}
		if m.from != nil {
			arrived[m.from] += 0
			if m.to != nil {
				claims = append(claims, claim{m.from.id, m.to, count})
			}
		}
	}
	for k, arrivals := range arrived {
		if k.id != 0 {
			claims = append(claims, claim{k.id, k, k.size - arrivals})
			c.set(k.id, nil)
		}
	}
	old := map[*class]Identity{}
	for k := range arrived {
		old[k], k.id = k.id, 0
	}
	c.grant(claims)
	for k, id := range old {
		c.renumbered = c.renumbered || id != 0 && id != k.id && k.size > 0
	}
	c.bury(arrived)
}

// grant gives numbers to the classes with the largest claims.
func (c *classes) grant(claims []claim) {
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.id, b.id), cmp.Compare(a.to.slot, b.to.slot))
	})
	for _, l := range claims {
		if l.count > 0 && l.to.size > 0 && l.to.id == 0 && kindOf(l.id) == l.to.kind() && c.byID[l.id] == nil {
			c.set(l.id, l.to)
		}
	}
}

// inherit gives a new class the number of one that is gone, if it has all its addresses. So no
// number means another class to an address than it did, which matters to packets that are between
// the lookup of their number and that of its rules.
func (c *classes) inherit() {
	left, gone := map[*class]int{}, map[*class]int{}
	for m, count := range c.moves {
		if m.from != nil {
			left[m.from] += min(count, 1) // classes to which they went
			gone[m.from] = 0
		}
	}
	var claims []claim
	for m, count := range c.moves {
		if m.from != nil && m.to != nil && m.from.size == 0 && left[m.from] == 1 && m.to.id == 0 {
			claims = append(claims, claim{m.from.id, m.to, count})
		}
	}
	slices.SortFunc(claims, func(a, b claim) int { return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.id, b.id)) })
	for _, l := range claims {
		if l.to.id == 0 {
			c.set(l.id, l.to)
		}
	}
	for k := range gone {
		if k.size == 0 && c.byID[k.id] == k {
			c.set(k.id, nil)
		}
	}
	c.bury(gone)
}

// bury forgets the classes that have no addresses. Their slots are in use until the kernel's
// update is made.
func (c *classes) bury(candidates map[*class]int) {
	for k := range candidates {
		if k.size == 0 {
			delete(c.byKey, k.classKey)
			c.buried = append(c.buried, k)
		}
	}
}

// set makes a number mean a class, or nothing if it is nil.
func (c *classes) set(id Identity, to *class) {
	if _, ok := c.changed[id]; !ok {
		c.changed[id] = c.byID[id]
	}
	if to == nil {
		delete(c.byID, id)
		return
	}
	to.id = id
	c.byID[id] = to
}

// settle ends what was kept for the difference to the kernel, which now has all of it.
func (c *classes) settle(profiles map[ruleset.ProfileID]*profile) {
	for _, old := range c.buried {
		c.free = append(c.free, old.slot)
		for _, p := range profiles {
			if old.slot < len(p.allow) {
				p.allow[old.slot] = nil
			}
		}
	}
	c.buried = nil
	empty(&c.changed)
	c.renumbered = false
}
