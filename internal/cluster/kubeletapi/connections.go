package kubeletapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
)

// listener bounds the connections to it. If there are too many, it closes the oldest of the client
// that holds most, so that no client keeps another one waiting. It doesn't close those whose user
// was let in.
type listener struct {
	net.Listener
	limit int

	mu   sync.Mutex
	next uint64
	held map[*connection]struct{} // Invariant: at most limit; guarded by mu.
}

func newListener(l net.Listener, limit int) *listener {
	return &listener{Listener: l, limit: limit, held: map[*connection]struct{}{}}
}

// connection is an open connection to a listener. The listener's mutex guards its fields.
type connection struct {
	net.Conn
	of      *listener
	client  netip.Prefix
	number  uint64 // in the order of acceptance
	trusted bool
}

// clientOf returns who is at an address: a host, which has an IPv4 address, or a network of 64
// bits, of which a host can have all addresses.
func clientOf(addr net.Addr) netip.Prefix {
	parsed, _ := netip.ParseAddrPort(addr.String())
	ip := parsed.Addr().Unmap().WithZone("")
	prefix, _ := ip.Prefix(min(ip.BitLen(), 64))
	return prefix
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: raw, of: l, client: clientOf(raw.RemoteAddr())}
		if loser := l.add(c); loser != nil {
			_ = loser.Conn.Close()
			if loser == c {
				continue
			}
		}
		return c, nil
	}
}

// add adds a connection and returns the one that has to go for it, which may be c, or nil.
func (l *listener) add(c *connection) (loser *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	c.number = l.next
	l.held[c] = struct{}{}
	if len(l.held) <= l.limit {
		return nil
	}
	counts, most := map[netip.Prefix]int{}, 0
	for held := range l.held {
		if !held.trusted {
			counts[held.client]++
			most = max(most, counts[held.client])
		}
	}
	for held := range l.held {
		if !held.trusted && counts[held.client] == most && (loser == nil || held.number < loser.number) {
			loser = held
		}
	}
	delete(l.held, loser)
	return loser
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.held, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

// withConnection returns a context that has the connection of requests.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}

// trust notes that the user of a request with this context was let in.
func trust(ctx context.Context) {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.trusted = true
	}
}
