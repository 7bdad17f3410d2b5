package file

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
)

// entry is a [[node]] table of the file.
type entry struct {
	Name      string         `toml:"name"`
	Addresses []netip.Addr   `toml:"addresses"`
	Blocks    []netip.Prefix `toml:"blocks"`
	MTU       int            `toml:"mtu"`
	VXLAN     *struct {
		VNI  *uint32   `toml:"vni"`
		Port *uint16   `toml:"port"`
		MAC  *peer.MAC `toml:"mac"`
	} `toml:"vxlan"`
	IPIP      bool `toml:"ipip"`
	WireGuard []struct {
		Key  peer.Key `toml:"key"`
		Port *uint16  `toml:"port"`
	} `toml:"wireguard"`
	Encrypted bool   `toml:"encrypted"`
	AS        uint32 `toml:"as"`
}

// node returns the entry as a record. What the entry doesn't say is what Husk does by default.
func (e entry) node() peer.Node {
	n := peer.Node{Version: peer.Version, Name: e.Name, Addresses: e.Addresses, Blocks: e.Blocks, MTU: e.MTU,
		VXLAN: backend.VXLANOf(e.Name), IPIP: e.IPIP, Encrypted: e.Encrypted, AS: e.AS}
	if v := e.VXLAN; v != nil {
		set(&n.VXLAN.VNI, v.VNI)
		set(&n.VXLAN.Port, v.Port)
		set(&n.VXLAN.MAC, v.MAC)
	}
	for _, w := range e.WireGuard {
		key := peer.WireGuard{Key: w.Key, Port: peer.WireGuardPort}
		set(&key.Port, w.Port)
		n.WireGuard = append(n.WireGuard, key)
	}
	return n
}

// set sets to to the value that an entry has given, if it has.
func set[T any](to, given *T) {
	if given != nil {
		*to = *given
	}
}

// parse returns the nodes of a file in the order of their names. Each line of the error begins with
// the line number of what is wrong.
func parse(data []byte) ([]*peer.Node, error) {
	var content struct {
		Node []entry `toml:"node"`
	}
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&content); err != nil {
		return nil, located(err)
	}
	if len(content.Node) == 0 {
		return nil, errors.New("1: it has no nodes: add a [[node]] table for each, with name, addresses and blocks")
	}
	lines := headers(data, len(content.Node))
	nodes := make([]*peer.Node, len(content.Node))
	var errs []error
	for i, e := range content.Node {
		node := e.node()
		nodes[i] = &node
		err := nodes[i].Check()
		if err == nil && len(e.Addresses) == 0 {
			err = fmt.Errorf("node %s has no addresses: other nodes couldn't reach it", e.Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%d: %w", lines[i], err))
		}
	}
	if err := errors.Join(append(errs, repeated(nodes, lines)...)...); err != nil {
		return nil, err
	}
	slices.SortFunc(nodes, func(a, b *peer.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// located returns an error of the decoder with the line before the message.
func located(err error) error {
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var errs []error
		for i := range unknown.Errors {
			line, _ := unknown.Errors[i].Position()
			errs = append(errs, fmt.Errorf("%d: unknown key %s", line, strings.Join(unknown.Errors[i].Key(), ".")))
		}
		return errors.Join(errs...)
	}
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := bad.Position()
		return fmt.Errorf("%d: %s", line, strings.TrimPrefix(bad.Error(), "toml: "))
	}
	return fmt.Errorf("1: %w", err)
}

var header = regexp.MustCompile(`(?m)^[ \t]*\[\[[ \t]*["']?node["']?[ \t]*\]\]`)

// headers returns the lines on which the tables of the nodes begin. A file that writes them in
// another way, as an inline array, gets line 1 for each.
func headers(data []byte, nodes int) []int {
	lines := make([]int, 0, nodes)
	line, from := 1, 0
	for _, at := range header.FindAllIndex(data, -1) {
		line += bytes.Count(data[from:at[0]], []byte("\n"))
		from = at[0]
		lines = append(lines, line)
	}
	if len(lines) != nodes {
		return slices.Repeat([]int{1}, nodes)
	}
	return lines
}

// repeated returns an error for each name, address and block that two nodes have.
func repeated(nodes []*peer.Node, lines []int) (errs []error) {
	names, addresses := map[string]int{}, map[netip.Addr]int{}
	type claim struct {
		netip.Prefix
		node int
	}
	var claims []claim
	for i, n := range nodes {
		if first, ok := names[n.Name]; ok {
			errs = append(errs, fmt.Errorf("%d: node %s is already on line %d: give one of them another name", lines[i], n.Name, lines[first]))
			continue
		}
		names[n.Name] = i
		for _, a := range n.Addresses {
			if first, ok := addresses[a]; ok {
				errs = append(errs, fmt.Errorf("%d: node %s has address %v of node %s on line %d: give one of them another", lines[i], n.Name, a, nodes[first].Name, lines[first]))
			}
			addresses[a] = i
		}
		for _, b := range n.Blocks {
			claims = append(claims, claim{b, i})
		}
	}
	// Subnets are nested or disjoint: in this order, one that contains others comes right before them.
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for i := 1; i < len(claims); i++ {
		a, b := claims[i-1], claims[i]
		if a.node != b.node && a.Overlaps(b.Prefix) {
			errs = append(errs, fmt.Errorf("%d: block %v of node %s overlaps block %v of node %s on line %d: give one of them another",
				lines[b.node], b.Prefix, nodes[b.node].Name, a.Prefix, nodes[a.node].Name, lines[a.node]))
		}
	}
	return errs
}
