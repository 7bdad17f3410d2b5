package doctor

import (
	"fmt"
	"time"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nodes"
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
		case p.Health.Answered && now.Sub(p.Health.Last) > silence:
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
		d.add("rp_filter", warn, fmt.Sprintf("strict reverse path filtering on %s drops packets of other nodes' pods while the two directions take different ways", uplink),
			fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", uplink))
	}
}

// passes names the packets that must pass between two nodes.
func passes(w backend.Way) string {
	switch w {
	case backend.VXLAN:
		return "UDP port 8472"
	case backend.WireGuard:
		return "UDP port 51820"
	case backend.IPIP:
		return "IP protocol 4"
	default:
		return "packets between pods' addresses"
	}
}
