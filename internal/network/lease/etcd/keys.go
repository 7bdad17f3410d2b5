package etcd

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Keys sort like addresses, so that all blocks inside another are one range of keys:
//
//	/husk/CLUSTER/blocks/010.201.007.000-24   {"node":"n7"}
//	/husk/CLUSTER/blocks/fd68:7573:6b00:0007:0000:0000:0000:0000-64
//	/husk/CLUSTER/nodes/n7                    the record, without blocks
//	/husk/CLUSTER/settling                    for a minute after a restore
//	/husk/CLUSTER/workloads/n7/shop/web       what policies need of a pod
const (
	blocksDir   = "blocks/"
	nodesDir    = "nodes/"
	settlingKey = "settling"
)

func addressKey(a netip.Addr) string {
	if a.Is4() {
		b := a.As4()
		return fmt.Sprintf("%03d.%03d.%03d.%03d", b[0], b[1], b[2], b[3])
	}
	return a.StringExpanded()
}

func blockKey(b netip.Prefix) string {
	return blocksDir + addressKey(b.Addr()) + "-" + strconv.Itoa(b.Bits())
}

// rangeWithin returns the keys of all blocks that begin inside b, b among them.
func rangeWithin(b netip.Prefix) (first, end string) {
	last := b.Addr().AsSlice()
	for i := b.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return blocksDir + addressKey(b.Addr()), blocksDir + addressKey(a) + "." // '.' comes after '-'
}

// containing returns the blocks that contain b, without b. There are none of fewer bits than
// peer.Node.Check accepts.
func containing(b netip.Prefix) (out []netip.Prefix) {
	least := 8
	if b.Addr().Is6() {
		least = 16
	}
	for bits := least; bits < b.Bits(); bits++ {
		p, _ := b.Addr().Prefix(bits)
		out = append(out, p)
	}
	return out
}

// parseBlockKey reads what blockKey writes.
func parseBlockKey(key string) (netip.Prefix, error) {
	address, length, _ := strings.Cut(strings.TrimPrefix(key, blocksDir), "-")
	if parts := strings.Split(address, "."); len(parts) == 4 {
		for i, p := range parts {
			if parts[i] = strings.TrimLeft(p, "0"); parts[i] == "" {
				parts[i] = "0"
			}
		}
		address = strings.Join(parts, ".")
	}
	b, err := netip.ParsePrefix(address + "/" + length)
	if err != nil || blockKey(b) != key || b != b.Masked() {
		return netip.Prefix{}, fmt.Errorf("key %.100q is not that of a block", key)
	}
	return b, nil
}

// holder is the value of a block's key, for people: what counts is the key's lease.
type holder struct {
	Node string `json:"node"`
}

func parseHolder(value []byte) string {
	var h holder
	if json.Unmarshal(value, &h) != nil || h.Node == "" {
		return fmt.Sprintf("%.60q", value) // somebody's note, which reserves the block
	}
	return h.Node
}
