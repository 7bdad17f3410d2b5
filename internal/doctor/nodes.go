package doctor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/preflight"
)

// nodes checks the ways to other nodes.
func (d *diagnosis) nodes(st nodes.Status, now time.Time) {
	const name = "other nodes"
	if st.Error != "" {
		d.add(name, fail, st.Error, "huskd tries again each second")
	}
	if !st.Known {
		d.add(name, warn, "the store of nodes has not answered yet: routes to other nodes stay as they were", "see network-store in huskd's configuration and the log")
		return
	}
	for _, n := range st.Notes {
		d.add(name, warn, n, "")
	}
	if len(st.Self.Blocks) == 0 {
		d.add(name, fail, fmt.Sprintf("node %s has no subnet of pod addresses in the store: no pod can start", st.Self.Name), "give it one")
	}
	fine, silence := 0, st.Silence()
	for _, p := range st.Peers {
		switch {
		case p.Way == "":
			d.add(name, fail, fmt.Sprintf("pods of node %s can't be reached: %s", p.Name, p.Why), "use another network-backend on both nodes")
		case p.Silent(now, silence):
			d.add(name, warn, fmt.Sprintf("node %s has not answered for %v", p.Name, now.Sub(p.Health.Last).Round(time.Second)), "see whether it runs, and whether a firewall drops "+passes(p.Way))
		case !p.Health.Answered && now.Sub(p.Since) > silence:
			d.add(name, note, fmt.Sprintf("node %s has never answered", p.Name), "see whether it runs huskd, and whether a firewall drops "+passes(p.Way))
		case len(p.Health.Broken) > 0:
			d.add(name, warn, fmt.Sprintf("node %s is reached by %s: %s", p.Name, p.Way, p.Why), "see whether a firewall or the cloud's source check drops "+passes(p.Health.Broken[0]))
		case p.Health.Limit > 0:
			d.add(name, warn, fmt.Sprintf("packets of more than %d bytes don't reach node %s", p.Health.Limit, p.Name), "the path has a smaller MTU than this node's uplink: set that of the uplink")
		default:
			fine++
		}
	}
	if fine > 0 || len(st.Peers) == 0 {
		d.add(name, ok, fmt.Sprintf("%d of %d are reached as they should be", fine, len(st.Peers)), "")
	}
}

// reversePath checks the sysctls rp_filter of the uplink, by which packets come from other nodes.
// The larger one of "all" and the link's counts (Linux, ip-sysctl.rst).
func (d *diagnosis) reversePath(uplink string, read func(sysctl string) (string, error)) {
	if uplink == "" {
		return
	}
	all, err := read("net/ipv4/conf/all/rp_filter")
	own, err2 := read("net/ipv4/conf/" + uplink + "/rp_filter")
	if err == nil && err2 == nil && max(all, own) == "1" {
		d.add("rp_filter", warn, fmt.Sprintf("strict reverse path filtering on %s drops packets of other nodes' pods while the two directions take different ways, so a direct way that has failed once is never used again", uplink),
			fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", uplink))
	}
}

// recently is how long packets that were dropped are worth a warning.
const recently = time.Hour

// drops checks whether the pod network had to drop what nobody honest sends.
func (d *diagnosis) drops(list []network.Dropped, err error, table string, now time.Time) {
	if err != nil {
		d.add("dropped packets", warn, "their counters can't be read: "+err.Error(), "")
	}
	for _, l := range list {
		if !l.Last.IsZero() && now.Sub(l.Last) < recently {
			d.add("dropped packets", warn, fmt.Sprintf("%d %v, the last of them %v ago", l.Count, l.Why, now.Sub(l.Last).Round(time.Minute)), l.Why.Remedy(table))
		}
	}
}

// dropped checks the firewall of this node for what other nodes send.
func (d *diagnosis) dropped(packets []preflight.DroppedPacket, err error) {
	if err != nil {
		d.add("firewall", warn, "the node's firewall can't be read: "+err.Error(), "")
	}
	for _, p := range packets {
		d.add("firewall", fail, fmt.Sprintf("%s drops what other nodes send to %v: %s", p.Where, p.To, p.Name), p.Fix)
	}
}

// neighbours checks whether the kernel's tables have room for all nodes on the same link. Entries
// of pods and of nodes behind tunnels are permanent and don't count (since Linux 5.0).
func (d *diagnosis) neighbours(direct func(six bool) int, read func(sysctl string) (string, error)) {
	for _, six := range []bool{false, true} {
		name := map[bool]string{false: "net/ipv4/neigh/default/gc_thresh3", true: "net/ipv6/neigh/default/gc_thresh3"}[six]
		value, err := read(name)
		limit, err2 := strconv.Atoi(value)
		if need := direct(six) + otherNeighbours; err == nil && err2 == nil && limit < need {
			dotted := strings.ReplaceAll(name, "/", ".")
			d.add("neighbours", warn, fmt.Sprintf("%s is %d, which is too few entries for %d nodes on the same link: packets to some of them are dropped", dotted, limit, direct(six)),
				fmt.Sprintf("sysctl -w %s=%d", dotted, 2*need))
		}
	}
}

// otherNeighbours is how many entries are left for routers, clients and others on the same link.
const otherNeighbours = 64

// passes names the packets that must pass between two nodes.
func passes(w backend.Way) string {
	if name := w.Carrier(); name != "" {
		return name
	}
	return "packets between pods' addresses (in a cloud, switch off the machine's source/destination check, or allow its pods' subnets)"
}
