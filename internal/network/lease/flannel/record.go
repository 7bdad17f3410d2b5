package flannel

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/huskd/husk/internal/network/peer"
)

// attributes is what flannel's nodes tell about themselves: the value of a lease.
type attributes struct {
	PublicIP      string // 0.0.0.0 if there is none
	PublicIPv6    *string
	BackendType   string          `json:",omitempty"`
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
}

// vxlanData and wireGuardData are the data of a backend for one family.
type (
	vxlanData struct {
		VNI     uint32
		VtepMAC peer.MAC
	}
	wireGuardData struct {
		PublicKey peer.Key
		Port      uint16 // 0 from versions of flannel that didn't write it
	}
)

// null is flannel's text for a backend without data.
const null = "null"

// present reports whether a backend has data.
func present(data json.RawMessage) bool {
	return len(data) > 0 && !bytes.Equal(bytes.TrimSpace(data), []byte(null))
}

// Value returns the value of a node's lease, in which the blocks aren't. An error says what keeps
// the node from being a part of the network.
func (n Network) Value(node peer.Node) ([]byte, error) {
	a, err := n.attributes(node)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

func (n Network) attributes(node peer.Node) (a attributes, err error) {
	a.BackendType, a.PublicIP = string(n.Backend), "0.0.0.0"
	if v4 := node.Address(false); v4.IsValid() {
		a.PublicIP = v4.String()
	}
	if v6 := node.Address(true); v6.IsValid() {
		a.PublicIPv6 = new(v6.String())
	}
	data, err := n.data(node)
	if err != nil {
		return a, err
	}
	for _, r := range n.Ranges {
		six := r.Network.Addr().Is6()
		switch {
		case !node.Address(six).IsValid():
			return a, fmt.Errorf("flannel's network has pods in %v, and this node has no address of that family", r.Network)
		case six:
			a.BackendV6Data = data
		default:
			a.BackendData = data
		}
	}
	return a, nil
}

// data returns the data of the network's backend, which are the same for both families: the links
// of both have the same MAC, and WireGuard has one link.
func (n Network) data(node peer.Node) (json.RawMessage, error) {
	switch n.Backend {
	case VXLAN:
		v := node.VXLAN
		if v == nil {
			return nil, errors.New("flannel's network is of VXLAN, which this node can't receive")
		}
		if v.VNI != n.VNI || v.Port != n.Port {
			return nil, fmt.Errorf("flannel's network has VNI %d and port %d, and this node %d and %d", n.VNI, n.Port, v.VNI, v.Port)
		}
		return json.Marshal(vxlanData{v.VNI, v.MAC})
	case WireGuard:
		if len(node.WireGuard) == 0 {
			return nil, errors.New("flannel's network is of WireGuard, which this node can't receive")
		}
		w := node.WireGuard[len(node.WireGuard)-1]
		return json.Marshal(wireGuardData{w.Key, w.Port})
	case IPIP:
		if !node.IPIP {
			return nil, errors.New("flannel's network is of IPIP, which this node can't receive")
		}
	}
	return nil, nil
}

// Node returns the record of a lease's node: its blocks are in the key, all else in the value.
// flannel knows nodes by their public address, which is the record's name.
func (n Network) Node(blocks []netip.Prefix, value []byte) (peer.Node, error) {
	var a attributes
	if len(value) > maxValue {
		return peer.Node{}, fmt.Errorf("flannel's lease of %v has %d bytes: at most %d", blocks, len(value), maxValue)
	}
	if err := json.Unmarshal(value, &a); err != nil {
		return peer.Node{}, fmt.Errorf("flannel's lease of %v: %w", blocks, err)
	}
	node, err := n.node(a)
	if err != nil {
		return peer.Node{}, fmt.Errorf("flannel's lease of %v: %w", blocks, err)
	}
	if len(node.Addresses) == 0 {
		return peer.Node{}, fmt.Errorf("flannel's lease of %v has no public address", blocks)
	}
	node.Name, node.Blocks = node.Addresses[0].String(), blocks
	if err := node.Check(); err != nil {
		return peer.Node{}, fmt.Errorf("flannel's lease of %v: %w", blocks, err)
	}
	return node, nil
}

// node returns all of a record but its name and blocks.
func (n Network) node(a attributes) (peer.Node, error) {
	node := peer.Node{Version: peer.Version}
	v6 := ""
	if a.PublicIPv6 != nil {
		v6 = *a.PublicIPv6
	}
	for _, text := range []string{a.PublicIP, v6} {
		if text == "" || text == "0.0.0.0" || text == "::" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return node, fmt.Errorf("public address %.60q is not an IP address", text)
		}
		node.Addresses = append(node.Addresses, addr)
	}
	var err error
	switch Backend(a.BackendType) {
	case VXLAN:
		node.VXLAN, err = n.vxlan(a)
		node.Tunneled = !n.DirectRouting
	case WireGuard:
		node.WireGuard, err = n.wireGuard(a)
		node.Encrypted = true
	case IPIP:
		node.IPIP, node.Tunneled = true, !n.DirectRouting
	case HostGW:
	default:
		err = fmt.Errorf("Husk has no backend %.30q", a.BackendType)
	}
	return node, err
}

// each calls f with the backend's data for each family of the network. Like flanneld, it ignores
// those of others.
func (n Network) each(a attributes, f func(data json.RawMessage) error) error {
	for _, r := range n.Ranges {
		data := a.BackendData
		if r.Network.Addr().Is6() {
			data = a.BackendV6Data
		}
		if !present(data) {
			return fmt.Errorf("%s: no backend data for %v", a.BackendType, r.Network)
		}
		if err := f(data); err != nil {
			return fmt.Errorf("%s: %w", a.BackendType, err)
		}
	}
	return nil
}

func (n Network) vxlan(a attributes) (*peer.VXLAN, error) {
	v := &peer.VXLAN{Port: cmp.Or(n.Port, peer.VXLANPort)}
	return v, n.each(a, func(data json.RawMessage) error {
		var d vxlanData
		if err := json.Unmarshal(data, &d); err != nil {
			return err
		}
		switch {
		case d.VtepMAC == peer.MAC{}:
			return errors.New("no MAC")
		case v.VNI == 0:
			v.VNI, v.MAC = d.VNI, d.VtepMAC
		case v.VNI != d.VNI:
			return fmt.Errorf("VNI %d for IPv4 and %d for IPv6", v.VNI, d.VNI)
		default:
			v.MAC6 = d.VtepMAC
		}
		return nil
	})
}

func (n Network) wireGuard(a attributes) (out []peer.WireGuard, err error) {
	err = n.each(a, func(data json.RawMessage) error {
		var d wireGuardData
		if err := json.Unmarshal(data, &d); err != nil {
			return err
		}
		if len(out) == 0 {
			out = append(out, peer.WireGuard{Key: d.PublicKey, Port: cmp.Or(d.Port, n.Port, peer.WireGuardPort)})
		} else if d.PublicKey != out[0].Key {
			return errors.New("two keys, and Husk sends both families by one")
		}
		return nil
	})
	return out, err
}

// SubnetsKey is the key below the prefix that leases are below.
const SubnetsKey = "/subnets/"

// Key returns the key of the lease of a node's blocks, below SubnetsKey. Only a network with IPv4
// has leases in etcd.
func Key(blocks []netip.Prefix) (string, error) {
	var four, six string
	for _, b := range blocks {
		text := b.Addr().String() + "-" + strconv.Itoa(b.Bits())
		switch {
		case b.Addr().Is4() && four == "":
			four = text
		case b.Addr().Is6() && six == "":
			six = "&" + text
		default:
			four = ""
		}
	}
	if four == "" {
		return "", fmt.Errorf("flannel has no leases of %v in etcd, only such of one IPv4 subnet, with an IPv6 subnet or without", blocks)
	}
	return four + six, nil
}

// ParseKey returns the blocks of a lease's key.
func ParseKey(key string) (blocks []netip.Prefix, err error) {
	for text := range strings.SplitSeq(key, "&") {
		i := strings.LastIndexByte(text, '-')
		if i < 0 || len(blocks) == 2 {
			return nil, notKey(key)
		}
		b, err := netip.ParsePrefix(text[:i] + "/" + text[i+1:])
		if err != nil {
			return nil, notKey(key)
		}
		blocks = append(blocks, b.Masked())
	}
	if again, err := Key(blocks); err != nil || again != key {
		return nil, notKey(key)
	}
	return blocks, nil
}

func notKey(key string) error {
	return fmt.Errorf("%.80q is not the key of a flannel lease, such as 10.5.34.0-24", key)
}
