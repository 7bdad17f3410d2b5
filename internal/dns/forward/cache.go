package forward

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	maxCache    = 4 << 20 // bytes of messages and keys
	maxTime     = time.Hour
	maxNegative = 30 * time.Second
	failureTime = time.Second // see RFC 9520, section 3.2
	// maxOther and maxOtherNegative bound the answers of other resolvers than the first, which
	// may not know what it knows: the names of a company's own network, for instance.
	maxOther         = 30 * time.Second
	maxOtherNegative = time.Second
	// overhead is about what an entry takes beside its message and key, in bytes.
	overhead = 200
)

// cache has the answers that may still be used, up to a size. The answers that were not used for
// the longest time go first.
type cache struct {
	max int

	mu      sync.Mutex
	size    int
	entries map[string]*list.Element
	order   list.List // of *entry, the last used first
}

type entry struct {
	key     string
	message []byte
	stored  time.Time
	until   time.Time
}

func newCache(size int) *cache { return &cache{max: size, entries: map[string]*list.Element{}} }

func (e *entry) size() int { return len(e.key) + len(e.message) + overhead }

// get returns an answer with the TTLs that remain, or nil.
func (c *cache) get(key string, now time.Time) *dns.Msg {
	c.mu.Lock()
	element := c.entries[key]
	if element == nil {
		c.mu.Unlock()
		return nil
	}
	e, _ := element.Value.(*entry)
	if !now.Before(e.until) {
		c.remove(element)
		c.mu.Unlock()
		return nil
	}
	c.order.MoveToFront(element)
	c.mu.Unlock()

	var m dns.Msg
	if m.Unpack(e.message) != nil {
		return nil
	}
	age := uint32(now.Sub(e.stored) / time.Second)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			h.Ttl -= min(age, h.Ttl)
		}
	}
	return &m
}

// put stores an answer for a time, if that is positive.
func (c *cache) put(key string, m *dns.Msg, lifetime time.Duration, now time.Time) {
	if lifetime <= 0 {
		return
	}
	message, err := m.Pack()
	if err != nil {
		return
	}
	e := &entry{key, message, now, now.Add(lifetime)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.entries[key]; old != nil {
		c.remove(old)
	}
	c.entries[key] = c.order.PushFront(e)
	c.size += e.size()
	for c.size > c.max {
		c.remove(c.order.Back())
	}
}

// remove removes an entry. The caller holds mu.
func (c *cache) remove(element *list.Element) {
	e, _ := c.order.Remove(element).(*entry)
	delete(c.entries, e.key)
	c.size -= e.size()
}

// lifetimeOf returns how long an answer may be cached, which is longest for one of the first
// resolver. That names or records are absent is cached as RFC 2308 says, which needs the zone's SOA
// record.
func lifetimeOf(m *dns.Msg, first bool) time.Duration {
	seconds := func(n uint32) time.Duration { return time.Duration(n) * time.Second }
	switch {
	case m.Truncated:
		return 0
	case m.Rcode == dns.RcodeServerFailure:
		return failureTime
	}
	lifetime, negative := maxTime, maxNegative
	if !first {
		lifetime, negative = maxOther, maxOtherNegative
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				lifetime = min(lifetime, seconds(rr.Header().Ttl))
			}
		}
	}
	if m.Rcode == dns.RcodeSuccess && answers(m) {
		return lifetime
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(lifetime, seconds(soa.Minttl), negative)
		}
	}
	return 0
}

// answers reports whether m has records of the type that was asked for, and not only an alias
// without.
func answers(m *dns.Msg) bool {
	for _, rr := range m.Answer {
		if t := rr.Header().Rrtype; len(m.Question) == 0 || t == m.Question[0].Qtype || m.Question[0].Qtype == dns.TypeANY {
			return true
		}
	}
	return false
}
