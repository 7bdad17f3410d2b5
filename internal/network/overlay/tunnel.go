package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/pod"
)

const (
	// sessionTime is how long a WireGuard session lasts at most (REJECT_AFTER_TIME in its paper).
	sessionTime = 180 * time.Second
	// peersPerMessage is how many peers wgctrl puts into one message.
	peersPerMessage = 32
)

// devices changes the node's WireGuard devices.
type devices struct {
	kernel *kernel
	keys   []peer.Key     // private
	client *wgctrl.Client // nil until the first use
}

func (d *devices) close() error {
	if d.client == nil {
		return nil
	}
	return d.client.Close()
}

// connect makes the client.
func (d *devices) connect() error {
	if d.client != nil {
		return nil
	}
	err := d.kernel.inNode(func() (err error) {
		d.client, err = wgctrl.New()
		return err
	})
	if err != nil {
		return fmt.Errorf("wireguard: %w", err)
	}
	return nil
}

func (d *devices) device(name string) (*wgtypes.Device, error) {
	if err := d.connect(); err != nil {
		return nil, err
	}
	device, err := d.client.Device(name)
	if err != nil {
		return nil, fmt.Errorf("wireguard: %w", err)
	}
	return device, nil
}

// compare returns how a device differs from its plan, apart from its peers.
func (d *devices) compare(want backend.Link) (out []Difference) {
	device, err := d.device(want.Name)
	switch {
	case err != nil:
		out = append(out, Difference{"link " + want.Name, err.Error()})
	case peer.Key(device.PublicKey) != want.Key:
		out = append(out, Difference{"link " + want.Name, "another key"})
	case device.ListenPort != int(want.Port):
		out = append(out, Difference{"link " + want.Name, fmt.Sprintf("port %d, not %d", device.ListenPort, want.Port)})
	}
	return out
}

// ensure sets the key and port of a device. With another key it has none of its peers: their
// sessions are void, which their last handshakes don't show.
func (d *devices) ensure(want backend.Link) error {
	device, err := d.device(want.Name)
	if err != nil {
		return err
	}
	if peer.Key(device.PublicKey) == want.Key && device.ListenPort == int(want.Port) {
		return nil
	}
	i := slices.IndexFunc(d.keys, func(k peer.Key) bool { return peer.Key(wgtypes.Key(k).PublicKey()) == want.Key })
	if i < 0 {
		return fmt.Errorf("there is no private key for %v", want.Key)
	}
	key, port := wgtypes.Key(d.keys[i]), int(want.Port)
	if err := d.client.ConfigureDevice(want.Name, wgtypes.Config{PrivateKey: &key, ListenPort: &port, ReplacePeers: peer.Key(device.PublicKey) != want.Key}); err != nil {
		return fmt.Errorf("set key and port %d: %w", port, err)
	}
	return nil
}

// wireGuardLinks returns the names of an instance's WireGuard links.
func wireGuardLinks(i pod.Instance) []string {
	return []string{backend.LinkName(i, backend.WireGuard, false), backend.Self{Instance: i}.SecondLink()}
}

// alive reports whether a peer's session can be used.
func alive(p *wgtypes.Peer) bool { return time.Since(p.LastHandshakeTime) < sessionTime }

// Sessions returns what the WireGuard links in the kernel know of their peers.
func (o *Overlay) Sessions() (map[backend.TunnelID]backend.Session, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[backend.TunnelID]backend.Session{}
	for _, link := range wireGuardLinks(o.kernel.instance) {
		device, err := o.devices.device(link)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range device.Peers {
			p := &device.Peers[i]
			out[backend.TunnelID{Link: link, Key: peer.Key(p.PublicKey)}] = backend.Session{Alive: alive(p), Own: peer.Key(device.PublicKey), Received: p.ReceiveBytes}
		}
	}
	return out, nil
}

// observe adds the peers of a device.
func (d *devices) observe(link string, have objects) error {
	device, err := d.device(link)
	if err != nil {
		return err
	}
	for i := range device.Peers {
		p := &device.Peers[i]
		t := tunnel{keepalive: int(p.PersistentKeepaliveInterval / time.Second), alive: alive(p)}
		if p.Endpoint != nil {
			e := p.Endpoint.AddrPort()
			t.endpoint = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
		}
		for j := range p.AllowedIPs {
			t.allowed = append(t.allowed, nlsock.Prefix(&p.AllowedIPs[j]))
		}
		slices.SortFunc(t.allowed, comparePrefixes)
		have.tunnels[tunnelKey{link, peer.Key(p.PublicKey)}] = t
	}
	return nil
}

// put adds and changes peers of WireGuard devices.
func (d *devices) put(keys []tunnelKey, have, want map[tunnelKey]tunnel) (errs []error) {
	return d.configure(keys, func(k tunnelKey) wgtypes.PeerConfig {
		h, exists := have[k]
		return peerConfig(k.key, exists, h, want[k])
	})
}

// peerConfig returns the change of a peer. Allowed addresses are replaced only where one has to go:
// for a moment the kernel has none of the peer's then, and drops packets.
func peerConfig(key peer.Key, exists bool, have, want tunnel) wgtypes.PeerConfig {
	c := wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), UpdateOnly: exists}
	if !exists || have.endpoint != want.endpoint && !have.alive {
		c.Endpoint = net.UDPAddrFromAddrPort(want.endpoint)
	}
	if have.keepalive != want.keepalive {
		keepalive := time.Duration(want.keepalive) * time.Second
		c.PersistentKeepaliveInterval = &keepalive
	}
	c.ReplaceAllowedIPs = slices.ContainsFunc(have.allowed, func(p netip.Prefix) bool { return !slices.Contains(want.allowed, p) })
	for _, p := range want.allowed {
		if c.ReplaceAllowedIPs || !slices.Contains(have.allowed, p) {
			c.AllowedIPs = append(c.AllowedIPs, net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
		}
	}
	return c
}

// drop removes peers of WireGuard devices, unless they have gone with a device.
func (d *devices) drop(keys []tunnelKey) (errs []error) {
	errs = d.configure(keys, func(k tunnelKey) wgtypes.PeerConfig {
		return wgtypes.PeerConfig{PublicKey: wgtypes.Key(k.key), Remove: true, UpdateOnly: true}
	})
	return slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, os.ErrNotExist) })
}

func (d *devices) configure(keys []tunnelKey, change func(tunnelKey) wgtypes.PeerConfig) (errs []error) {
	changes := map[string][]wgtypes.PeerConfig{}
	for _, k := range keys {
		changes[k.link] = append(changes[k.link], change(k))
	}
	for link, peers := range changes {
		if err := d.connect(); err != nil {
			return append(errs, err)
		}
		for some := range slices.Chunk(peers, peersPerMessage) {
			if err := d.client.ConfigureDevice(link, wgtypes.Config{Peers: some}); err != nil {
				errs = append(errs, fmt.Errorf("%d peers of %s: %w", len(some), link, err))
			}
		}
	}
	return errs
}
