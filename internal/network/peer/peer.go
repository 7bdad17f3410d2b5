// Package peer defines what the nodes of one pod network tell each other: a record per node with
// its addresses, its blocks of pod addresses, and how it receives packets for them. It is pure.
//
// A record comes from another machine. Parse accepts it as a whole or returns an error that says
// what is wrong; what it accepts can't harm the node that routes by it.
package peer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/network/plan"
)

// Version is the version of records that this version of Husk writes. It reads all versions, and
// ignores fields that it doesn't know.
const Version = 1

// Ports in records, see plan.NodePorts.
const (
	VXLANPort     = plan.VXLANPort
	WireGuardPort = plan.WireGuardPort
	RotationPort  = plan.RotationPort
)

// Node is the record of a node.
type Node struct {
	Version int    `json:"v"`
	Name    string `json:"node"`
	// Boot is the ID of the node's boot. It tells two machines with one name apart.
	Boot string `json:"boot,omitempty"`
	// Machine identifies the installation of the operating system. Copies of one have the same, which
	// is a mistake, unless they have the same Boot too: then both nodes are on one machine.
	Machine string `json:"machine,omitempty"`
	// Addresses are the node's own, at most one per family.
	Addresses []netip.Addr `json:"addresses"`
	// Blocks are the subnets of the node's pods.
	Blocks []netip.Prefix `json:"blocks"`
	// MTU is that of the node's uplink; 0 if it isn't known.
	MTU int `json:"mtu,omitempty"`
	// VXLAN is nil if the node can't receive VXLAN packets, and so are the others.
	VXLAN *VXLAN `json:"vxlan,omitempty"`
	IPIP  bool   `json:"ipip,omitempty"`
	// WireGuard has one entry. Of two, the last one counts.
	WireGuard []WireGuard `json:"wireguard,omitempty"`
	// Rotation is nil if the node can't exchange packets by a second WireGuard link. Versions of Husk
	// that can't ignore it, so the peer's first link must go on working for them.
	Rotation *Rotation `json:"rotation,omitempty"`
	// Encrypted means that the node drops packets for its pods that don't come by WireGuard.
	Encrypted bool `json:"encrypted,omitempty"`
	// Tunneled means that the node expects packets for its pods by a tunnel only, also from nodes on
	// the same link: a strict rp_filter drops others. It is so with flannel without DirectRouting.
	Tunneled bool `json:"tunneled,omitempty"`
	// AS is the number of the node's autonomous system; 0 if it doesn't speak BGP.
	AS uint32 `json:"as,omitempty"`
}

// VXLAN is how a node receives VXLAN packets.
type VXLAN struct {
	VNI  uint32 `json:"vni"`
	Port uint16 `json:"port"`
	MAC  MAC    `json:"mac"`
	// MAC6 is set if IPv6 packets for the node's pods must come over IPv6, to a link with this MAC,
	// and IPv4 packets over IPv4. It is so with flannel.
	MAC6 MAC `json:"mac6,omitzero"`
}

// WireGuard is how a node receives WireGuard packets.
type WireGuard struct {
	Key  Key    `json:"key"`
	Port uint16 `json:"port"`
}

// Rotation is the second WireGuard link of a node. It exists while the node or a peer is changing
// its key, so that peers exchange packets by one link while a key of the other changes.
type Rotation struct {
	Port uint16 `json:"port"`
	// Key is the link's while the node itself is changing its key: first the new key, when that in
	// Node.WireGuard is the old one, and then the same in both. Otherwise it is zero, and the link's
	// key is that in Node.WireGuard.
	Key Key `json:"key,omitzero"`
}

// Key returns the key of the node's WireGuard link; zero if it has none.
func (n *Node) Key() Key {
	if len(n.WireGuard) == 0 {
		return Key{}
	}
	return n.WireGuard[len(n.WireGuard)-1].Key
}

// Rotating reports whether the node is changing its key, from the beginning to the end.
func (n *Node) Rotating() bool { return n.Rotation != nil && n.Rotation.Key != Key{} }

// MAC is an Ethernet address, written as six hex pairs.
type MAC plan.MAC

// String returns the address as six hex pairs.
func (m MAC) String() string { return plan.MAC(m).String() }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(text []byte) error {
	parsed, err := plan.ParseMAC(string(text))
	*m = MAC(parsed)
	return err
}

// Key is a public key of WireGuard, written in base64 as wg shows it.
type Key [32]byte

// String returns the key in base64.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText implements encoding.TextMarshaler.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Key) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(b) != len(k) || [32]byte(b) == (Key{}) {
		return fmt.Errorf("%.60q is not a key of 32 bytes in base64", text)
	}
	*k = Key(b)
	return nil
}

// Address returns the node's address of a family, the zero Addr if it has none.
func (n Node) Address(six bool) netip.Addr {
	for _, a := range n.Addresses {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// MaxBlocks is how many blocks a record may have.
const MaxBlocks = 64

// Limits of a record's size and names. A name is that of a Kubernetes node at most.
const (
	maxRecord = 16 << 10
	maxName   = 253
)

// Parse reads a record and checks it.
func Parse(data []byte) (Node, error) {
	var n Node
	if len(data) > maxRecord {
		return n, fmt.Errorf("record of %d bytes: at most %d", len(data), maxRecord)
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return Node{}, fmt.Errorf("record: %w", err)
	}
	if err := n.Check(); err != nil {
		return Node{}, err
	}
	return n, nil
}

// Check returns an error if the record isn't one that a node may act on.
func (n Node) Check() error {
	if n.Name == "" || len(n.Name) > maxName || strings.ContainsFunc(n.Name, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
		return fmt.Errorf("record of node %.60q: not a name of a node", n.Name)
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if n.Version < 1 {
		wrong("version %d", n.Version)
	}
	for i, a := range n.Addresses {
		if !a.IsGlobalUnicast() || a.Zone() != "" || a.Is4In6() {
			wrong("address %v is not one that other nodes can reach", a)
		}
		if slices.ContainsFunc(n.Addresses[:i], func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			wrong("addresses %v: at most one of each family", n.Addresses)
		}
	}
	if len(n.Blocks) > MaxBlocks {
		wrong("%d blocks: at most %d", len(n.Blocks), MaxBlocks)
	} else {
		errs = append(errs, checkBlocks(n.Blocks)...)
	}
	if n.MTU != 0 && (n.MTU < 1280 || n.MTU > 65535) {
		wrong("mtu %d: not 1280 to 65535", n.MTU)
	}
	if v := n.VXLAN; v != nil && (v.VNI == 0 || v.VNI >= 1<<24 || v.Port == 0 || v.MAC == MAC{}) {
		wrong("vxlan: needs a vni of 1 to %d, a port and a mac", 1<<24-1)
	}
	if len(n.WireGuard) > 2 {
		wrong("wireguard: %d keys, at most 2", len(n.WireGuard))
	}
	for _, w := range n.WireGuard {
		if w.Port == 0 || w.Key == (Key{}) {
			wrong("wireguard: needs a key and a port")
		}
	}
	if n.Rotation != nil && (n.Rotation.Port == 0 || len(n.WireGuard) == 0) {
		wrong("rotation: needs a port, and wireguard")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("record of node %s: %s", n.Name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

func checkBlocks(blocks []netip.Prefix) (errs []error) {
	for i, b := range blocks {
		switch a := b.Addr(); {
		case !b.IsValid() || b != b.Masked() || a.Is4In6() || a.Is4() && b.Bits() < 8 || a.Is6() && b.Bits() < 16:
			errs = append(errs, fmt.Errorf("block %v is not a subnet", b))
		case !a.IsGlobalUnicast():
			errs = append(errs, fmt.Errorf("block %v has addresses that pods can't have", b))
		case slices.ContainsFunc(blocks[:i], b.Overlaps):
			errs = append(errs, fmt.Errorf("block %v overlaps another of the same node", b))
		}
	}
	return errs
}

// Equal reports whether two records are the same.
func (n Node) Equal(o Node) bool { return n.equal(&o) }

func (n *Node) equal(o *Node) bool {
	sameVXLAN := n.VXLAN == o.VXLAN || n.VXLAN != nil && o.VXLAN != nil && *n.VXLAN == *o.VXLAN
	sameRotation := n.Rotation == o.Rotation || n.Rotation != nil && o.Rotation != nil && *n.Rotation == *o.Rotation
	return sameVXLAN && sameRotation && n.Version == o.Version && n.Name == o.Name && n.Boot == o.Boot && n.Machine == o.Machine && n.MTU == o.MTU && n.IPIP == o.IPIP &&
		n.Encrypted == o.Encrypted && n.Tunneled == o.Tunneled && n.AS == o.AS && slices.Equal(n.Addresses, o.Addresses) && slices.Equal(n.Blocks, o.Blocks) && slices.Equal(n.WireGuard, o.WireGuard)
}

// View is what a registry knows at one moment.
type View struct {
	// Blocks are this node's own.
	Blocks []netip.Prefix
	// Addresses are what the registry tells the others of this node's addresses, if that isn't what
	// was announced.
	Addresses []netip.Addr
	// Peers are the other nodes, in the order of their names. It is complete: a node that isn't
	// there has left. Their records are parsed; Accept says which of them can be used.
	// Nothing modifies a record. Registries of many nodes take those that haven't changed from their
	// last view, so that their pointers are the same.
	Peers []*Node
	// Notes say what in the registry can't be used and why, one line each.
	Notes []string
	// Loss says that the registry has lost records, and that peers and blocks are kept which it no
	// longer has. It is empty if none are.
	Loss string
}

// Equal reports whether two views are the same.
func (v View) Equal(o View) bool {
	return v.Loss == o.Loss && slices.Equal(v.Blocks, o.Blocks) && slices.Equal(v.Addresses, o.Addresses) && slices.Equal(v.Notes, o.Notes) && slices.EqualFunc(v.Peers, o.Peers, func(a, b *Node) bool { return a == b || a.equal(b) })
}

// Registry is where nodes find each other's records, and from where this node has its blocks.
type Registry interface {
	// Run follows the registry until ctx ends, and returns an error only if retrying can't help. It
	// calls update with the complete state when that is first known and whenever it has changed.
	// While the registry is away, the last state stays in force.
	Run(ctx context.Context, update func(View)) error
	// Announce tells the other nodes this node's record. The registry fills in Version, Name and
	// Blocks. It returns at once; Run writes the record.
	Announce(record Node)
	// May returns nil if an address of the block may be given to a pod now, and otherwise the reason
	// why not. For the zero Prefix it returns why this node has no block. It doesn't wait for
	// anything.
	May(block netip.Prefix) error
	// Used tells how many addresses of each block are in use, so that the registry can claim another
	// block or return one. A block in use is never returned. An address that pods have from before
	// this node had blocks is a Usage of its own, whose Block has only this address: a registry in
	// which nodes claim blocks claims the one around it.
	Used(blocks []Usage)
}

// Lost is a subnet of a block that isn't this node's any more, though pods have addresses of it.
type Lost struct {
	Block netip.Prefix
	Node  string // that has it now; empty if none has
}

// Usage is how full a block is.
type Usage struct {
	Block      netip.Prefix
	Size, Used int // addresses; one in quarantine counts as used
}
