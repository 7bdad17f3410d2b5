package etcd

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"sync"
)

// connections are those to etcd.
type connections struct {
	mu    sync.Mutex // Invariant: guards conns.
	conns map[*net.TCPConn]bool
}

// dial connects to a host and port. It returns what the standard library does, as gRPC sets socket
// options of no other types.
func (c *connections) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		maps.DeleteFunc(c.conns, func(old *net.TCPConn, _ bool) bool { return isClosed(old) })
		if c.conns == nil {
			c.conns = map[*net.TCPConn]bool{}
		}
		c.conns[tcp] = true
	}
	return conn, nil
}

func isClosed(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// closeDead closes connections from addresses that this node no longer has. Nothing comes by them,
// and TCP takes long to give up: a node whose address has changed couldn't tell the others.
func (c *connections) closeDead() {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return
	}
	have := make(map[netip.Addr]bool, len(addresses))
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			have[p.Addr()] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		from := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
		if !have[from] && !from.IsLoopback() { // all of 127.0.0.0/8 is local
			_ = conn.SetLinger(0) // otherwise the kernel tries to send the rest for minutes
			_ = conn.Close()
			delete(c.conns, conn)
		}
	}
}
