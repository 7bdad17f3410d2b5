package forward

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// probeTime is how long a resolver has to answer a probe.
	probeTime = time.Second
	// probesLost is how many probes in succession get no answer of a resolver that is silent.
	probesLost = 2
	// silentTime is for how long a resolver counts as silent after the last lost probe. Questions
	// renew it, at most one each probeTime.
	silentTime = 30 * time.Second
)

// resolver is one of the node's resolvers.
//
// It is silent if it answers nothing at all to anybody. That one question gets no answer says
// nothing about it: its name may be slow, and whoever asks for such names would decide whom all
// others ask. A question without an answer is why it is probed.
type resolver struct {
	address netip.AddrPort
	log     *slog.Logger

	mu      sync.Mutex
	probing bool
	heard   uint64    // how many answers it has sent
	lost    int       // probes in succession, with no answer to anything in between
	last    time.Time // when the last one was lost
}

// silent reports whether the resolver comes after the others.
func (r *resolver) silent(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost >= probesLost && now.Sub(r.last) < silentTime
}

// answered notes that the resolver has answered something, whatever it was.
func (r *resolver) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost >= probesLost {
		r.log.Info("dns: a resolver answers again", "resolver", r.address)
	}
	r.heard, r.lost = r.heard+1, 0
}

// probe finds out whether the resolver is silent, unless that is being done. It doesn't wait for
// the result, and ends with ctx.
func (r *resolver) probe(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.probing {
		return
	}
	r.probing = true
	go func() {
		for r.lose(ctx) {
		}
	}()
}

// lose probes once, and reports whether to probe again.
func (r *resolver) lose(all context.Context) bool {
	ctx, cancel := context.WithTimeout(all, probeTime)
	defer cancel()
	r.mu.Lock()
	before := r.heard
	r.mu.Unlock()
	// Every resolver knows the root's servers: no other server has to be asked for them.
	root := Question{Question: dns.Question{Name: ".", Qtype: dns.TypeNS, Qclass: dns.ClassINET}}
	_, err := r.send(ctx, "udp", root, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !timedOut(err) || all.Err() != nil || r.heard != before {
		r.probing = false
		return false
	}
	r.lost, r.last = r.lost+1, time.Now()
	if r.lost < probesLost {
		return true
	}
	if r.lost == probesLost {
		r.log.Warn("dns: a resolver answers nothing; others are asked before it until it does", "resolver", r.address)
	}
	r.probing = false
	return false
}

// timedOut reports whether an error is that no answer came, unlike one that says why.
func timedOut(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}
