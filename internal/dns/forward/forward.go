// Package forward asks the node's resolvers on behalf of pods, and caches their answers.
package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
)

const (
	// tryTime is how long one resolver has to answer.
	tryTime = 2 * time.Second
	// totalTime is how long a question may take. The C libraries of pods ask again after 5 s.
	totalTime = 4500 * time.Millisecond
	// messageSize is what resolvers may send in one datagram. It fits into all packets, see
	// https://www.dnsflagday.net/2020.
	messageSize = 1232
)

// Forwarder asks resolvers. Its methods may be called concurrently.
type Forwarder struct {
	log   *slog.Logger
	using atomic.Pointer[resolvers] // never nil
}

// resolvers are the node's resolvers until these change. Others may give other answers, so each has
// a cache of its own.
type resolvers struct {
	list    []*resolver
	cache   *cache
	running singleflight.Group // of questions
}

// New returns a Forwarder without resolvers.
func New(log *slog.Logger) *Forwarder {
	f := &Forwarder{log: log}
	f.using.Store(&resolvers{cache: newCache(maxCache)})
	return f
}

// SetResolvers sets the resolvers, in the order in which they are asked.
func (f *Forwarder) SetResolvers(addresses []netip.AddrPort) {
	if slices.Equal(addresses, f.Resolvers()) {
		return
	}
	now := &resolvers{cache: newCache(maxCache)}
	for _, a := range addresses {
		now.list = append(now.list, &resolver{address: a, log: f.log})
	}
	f.using.Store(now)
}

// Resolvers returns the resolvers.
func (f *Forwarder) Resolvers() (out []netip.AddrPort) {
	for _, r := range f.using.Load().list {
		out = append(out, r.address)
	}
	return out
}

// Silent returns the resolvers that answer nothing.
func (f *Forwarder) Silent() (out []netip.AddrPort) {
	for _, r := range f.using.Load().list {
		if r.silent(time.Now()) {
			out = append(out, r.address)
		}
	}
	return out
}

// Question is what is asked. The flags are those of DNSSEC: whether signatures are wanted, and
// whether they shall not be checked.
type Question struct {
	dns.Question
	WantSignatures, Unchecked bool
}

// key identifies equal questions.
func (q Question) key() string {
	return fmt.Sprintf("%s %d %d %t %t", dns.CanonicalName(q.Name), q.Qtype, q.Qclass, q.WantSignatures, q.Unchecked)
}

// Resolve answers a question, from the cache or by a resolver. The answer has no EDNS record; its
// ID and question are undefined. Without an answer, or when ctx ends, it is a server failure.
// Callers with the same question share an answer, so ctx is to be that of all of them.
func (f *Forwarder) Resolve(ctx context.Context, q Question) *dns.Msg {
	key, using := q.key(), f.using.Load()
	if answer := using.cache.get(key, time.Now()); answer != nil {
		return answer
	}
	v, _, shared := using.running.Do(key, func() (any, error) {
		answer, first, err := ask(ctx, using.list, q)
		if err != nil {
			f.log.Debug("dns: no resolver answers", "name", q.Name, "error", err)
			answer = new(dns.Msg)
			answer.Rcode = dns.RcodeServerFailure
		}
		using.cache.put(key, answer, lifetimeOf(answer, first), time.Now())
		return answer, nil
	})
	answer, _ := v.(*dns.Msg)
	if shared {
		return answer.Copy()
	}
	return answer
}

// ask asks the resolvers in turn, twice if need be: every question begins with the first one, as
// with the C libraries, but for resolvers that answer nobody. The result first is whether the
// answer is that of the first of the list.
func ask(all context.Context, list []*resolver, q Question) (answer *dns.Msg, first bool, err error) {
	if len(list) == 0 {
		return nil, false, errors.New("the node has no resolver")
	}
	ctx, cancel := context.WithTimeout(all, totalTime)
	defer cancel()
	now := time.Now()
	var order, last []*resolver
	for _, r := range list {
		if r.silent(now) {
			last = append(last, r)
			r.probe(all)
		} else {
			order = append(order, r)
		}
	}
	order = append(order, last...)
	var failure *dns.Msg
	var failed error
	for range 2 {
		for _, r := range order {
			answer, err := r.exchange(ctx, q)
			switch {
			case err != nil:
				if timedOut(err) && all.Err() == nil {
					r.probe(all)
				}
				failed = fmt.Errorf("resolver %v: %w", r.address, err)
			case answer.Rcode == dns.RcodeSuccess || answer.Rcode == dns.RcodeNameError:
				return answer, r == list[0], nil
			default:
				failure = answer
			}
			if ctx.Err() != nil {
				break
			}
		}
		if failure != nil || ctx.Err() != nil {
			break
		}
	}
	if failure != nil {
		failure.Rcode = dns.RcodeServerFailure // the resolver's refusal is of huskd, not of the pod
		return failure, false, nil
	}
	return nil, false, failed
}

// exchange asks the resolver by UDP, and by TCP if the answer is too long for that.
func (r *resolver) exchange(ctx context.Context, q Question) (*dns.Msg, error) {
	answer, err := r.send(ctx, "udp", q, true)
	if err == nil && (answer.Rcode == dns.RcodeFormatError || answer.Rcode == dns.RcodeNotImplemented) && !q.WantSignatures {
		answer, err = r.send(ctx, "udp", q, false) // it may not know EDNS
	}
	if err == nil && answer.Truncated {
		answer, err = r.send(ctx, "tcp", q, true)
	}
	if err != nil {
		return nil, err
	}
	answer.Extra = slices.DeleteFunc(answer.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	return answer, nil
}

// send asks the resolver once. It takes no answer to another question.
func (r *resolver) send(ctx context.Context, network string, q Question, edns bool) (*dns.Msg, error) {
	m := &dns.Msg{Question: []dns.Question{q.Question}}
	m.Id, m.RecursionDesired, m.CheckingDisabled = dns.Id(), true, q.Unchecked
	if edns {
		m.SetEdns0(messageSize, q.WantSignatures)
	}
	client := dns.Client{Net: network, Timeout: tryTime, UDPSize: messageSize}
	conn, err := client.DialContext(ctx, r.address.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	answer, _, err := client.ExchangeWithConnContext(ctx, m, conn)
	if err != nil {
		return nil, err
	}
	r.answered()
	switch {
	case !answer.Response || len(answer.Question) != 1 && answer.Rcode != dns.RcodeFormatError:
		return nil, errors.New("the answer is none")
	case len(answer.Question) == 1 && (answer.Question[0].Qtype != q.Qtype || !strings.EqualFold(answer.Question[0].Name, q.Name)):
		return nil, errors.New("the answer is to another question")
	}
	return answer, nil
}
