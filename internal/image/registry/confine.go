package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// dialTime and keepAlive are those of docker.DefaultHTTPTransport.
const (
	dialTime  = 30 * time.Second
	keepAlive = 30 * time.Second
)

// metadata are the addresses of clouds' metadata services that aren't link-local: those of AWS and
// Google Cloud in IPv6, of Alibaba Cloud, and Azure's WireServer.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"),
}

// confined is the key of the confinement in the context of a request to a host that only the
// registry has named, as a token server or by a redirect. Whoever names an image chooses its
// registry, and so that host.
type confined struct{}

// confinement says where such a request may go.
type confinement struct {
	loopback bool // the registry is there itself
}

// straying is the error for a request to an address of the node's or of its link.
type straying struct{ addr netip.Addr }

func (e straying) Error() string {
	return fmt.Sprintf("%s is an address of the node or its link", e.addr)
}

// check returns an error if a request may not go to an address.
func (c confinement) check(addr netip.Addr) error {
	addr = addr.Unmap()
	self := addr.IsLoopback() || addr.IsUnspecified() // the kernel connects the latter to loopback
	if self && !c.loopback || addr.IsLinkLocalUnicast() || addr.IsMulticast() || slices.Contains(metadata, addr.WithZone("")) {
		return straying{addr}
	}
	return nil
}

// confine confines a request unless it is to a host that the node's administrator or the image's
// name has named.
func (g guard) confine(req *http.Request) (*http.Request, error) {
	if g.configured(req.URL) {
		return req, nil
	}
	origin := g.hosts[len(g.hosts)-1].Host // the registry itself; those before are mirrors
	if asked := first(req).URL; g.configured(asked) {
		origin = asked.Host
	}
	// By its name: that of a hostile registry may resolve to loopback whenever it likes.
	c := confinement{loopback: docker.IsLocalhost(origin)}
	if addr, err := netip.ParseAddr(req.URL.Hostname()); err == nil {
		if err := c.check(addr); err != nil {
			return nil, g.stray(req, err)
		}
	}
	if proxy := g.transports[0].Proxy; proxy != nil {
		if at, err := proxy(req); err != nil || at != nil {
			return req, err // the proxy resolves names, and may be at loopback itself
		}
	}
	return req.WithContext(context.WithValue(req.Context(), confined{}, c)), nil
}

// stray explains err if it is that a request would have strayed.
func (g guard) stray(req *http.Request, err error) error {
	if at := (straying{}); errors.As(err, &at) {
		return errdefs.ErrPermissionDenied.WithMessage(fmt.Sprintf(
			"registry %s sends huskd to %s, which is refused: %s", g.name, req.URL.Host, at))
	}
	return err
}

// confineDials makes a transport refuse connections of confined requests by their address, which
// only the connection knows: a name may resolve to another one each time.
func confineDials(t *http.Transport) {
	dial := t.DialContext
	checked := &net.Dialer{Timeout: dialTime, KeepAlive: keepAlive, ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		c, _ := ctx.Value(confined{}).(confinement)
		return c.check(to.Addr())
	}}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if _, ok := ctx.Value(confined{}).(confinement); ok {
			return checked.DialContext(ctx, network, address)
		}
		return dial(ctx, network, address)
	}
}
