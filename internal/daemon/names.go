package daemon

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/dns/forward"
	"github.com/huskd/husk/internal/dns/nameserver"
	"github.com/huskd/husk/internal/dns/zone"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/service"
)

// names serves DNS to the pods of a node without a cluster. It is nil, and its methods do nothing,
// if huskd doesn't: a cluster has its own DNS.
type names struct {
	d       *daemon
	zone    zone.Config
	pods    []netip.Prefix // their subnets
	forward *forward.Forwarder
	server  *nameserver.Server
	changed chan struct{} // has an item after a change of pods or services
	// named are the names of pods by their addresses, also those that CNI plugins gave them, outside
	// of the pod subnets.
	named atomic.Pointer[map[netip.Addr]string]

	// Invariant: mu guards the two maps below.
	mu       sync.Mutex
	services map[string]*service.Service
	slices   map[string]*service.Slice
}

// openNames starts to listen, if huskd serves DNS.
func openNames(d *daemon, subnets []netip.Prefix) *names {
	if d.cfg.DNS == config.DNSOff || d.cfg.NetworkOnly || d.cfg.Kubeconfig != "" || len(d.cfg.ClusterDNS) > 0 {
		return nil
	}
	addresses := plan.Resolvers(d.instance)
	address := addresses[0]
	if !slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		address = addresses[1]
	}
	n := &names{
		d: d, zone: zone.Config{Domain: d.cfg.ClusterDomain, Server: address, Reverse: subnets}, pods: subnets,
		forward: forward.New(d.log), changed: make(chan struct{}, 1),
		services: map[string]*service.Service{}, slices: map[string]*service.Slice{},
	}
	n.named.Store(&map[netip.Addr]string{})
	if services, err := d.cfg.ServicePrefixes(); err == nil && d.cfg.Proxy != config.ProxyOff {
		n.zone.Reverse = slices.Concat(subnets, services)
	}
	n.server = nameserver.New(nameserver.Config{
		Address: netip.AddrPortFrom(address, nameserver.Port), Zone: zone.New(n.zone, nil, nil), Forward: n.forward, Client: n.client, Limited: n.limited, Log: d.log,
	})
	return n
}

// address returns the server's address, which is invalid without one.
func (n *names) address() netip.Addr {
	if n == nil {
		return netip.Addr{}
	}
	return n.zone.Server
}

// servers returns the name servers of pods with dnsPolicy ClusterFirst, given those of a cluster.
// If the own one can't listen there are none, so that these pods use the node's.
func (n *names) servers(cluster []string) []string {
	if n == nil || n.server.Err() != nil {
		return cluster
	}
	return []string{n.zone.Server.String()}
}

// err returns why pods get no answers, or nil.
func (n *names) err() error {
	if n == nil {
		return nil
	}
	return n.server.Err()
}

// client returns the name of the pod that has an address, or the address if that of a CRI client's
// pod; nothing if it is no pod's.
func (n *names) client(a netip.Addr) string {
	if name := (*n.named.Load())[a]; name != "" {
		return name
	}
	for _, p := range n.pods {
		if p.Contains(a) {
			return a.String()
		}
	}
	return ""
}

// limited says that a client asks too much.
func (n *names) limited(client string) {
	n.d.agent.Events.Add(event.Event{Pod: client, Warning: true, Reason: "NamesLimited", Message: fmt.Sprintf("it asks for more than %d names a second; what is more gets no answer", nameserver.Rate)})
}

// usage returns what was asked.
func (n *names) usage() nameserver.Usage {
	if n == nil {
		return nameserver.Usage{}
	}
	return n.server.Usage()
}

// problems says which pods ask too much, and which resolvers answer nothing.
func (n *names) problems() (out []string) {
	if n == nil {
		return nil
	}
	for _, e := range n.server.Usage().Excesses {
		out = append(out, fmt.Sprintf("%s asks for more than %d names a second since %s: %d questions got no answer; see what it runs", e.Client, nameserver.Rate, e.Since.Format(time.TimeOnly), e.Dropped))
	}
	for _, r := range n.forward.Silent() {
		out = append(out, fmt.Sprintf("the node's resolver %v answers nothing, so that pods get what the others know: see whether it runs, or change /etc/resolv.conf", r.Addr()))
	}
	return out
}

// podChanged says that pods may have changed. It doesn't block.
func (n *names) podChanged() {
	if n == nil {
		return
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// ServicesChanged takes what a source of Services has learned. It doesn't block.
func (n *names) ServicesChanged(c service.Changes) {
	if n == nil {
		return
	}
	n.mu.Lock()
	merge(n.services, c.Services)
	merge(n.slices, c.Slices)
	n.mu.Unlock()
	n.podChanged()
}

// merge sets the values of changes, and removes those of which the change is nil.
func merge[T any](all, changes map[string]*T) {
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, v *T) bool { return v == nil })
}

// run serves until ctx ends.
func (n *names) run(ctx context.Context, running *errgroup.Group) {
	if n == nil {
		return
	}
	n.update() // before the first answer
	running.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-n.changed:
				n.update()
			}
		}
	})
	running.Go(func() error {
		n.forward.Follow(ctx, resolvConf(n.d.cfg), n.zone.Server)
		return nil
	})
	running.Go(func() error {
		n.server.Run(ctx)
		return nil
	})
}

// update makes the zone of the present pods.
func (n *names) update() {
	var pods []zone.Pod
	named := map[netip.Addr]string{}
	for p := range n.d.agent.Views() {
		pod, ok := namedPod(p)
		if !ok {
			continue
		}
		pods = append(pods, pod)
		for _, a := range pod.Addresses {
			named[a] = p.Name()
		}
	}
	n.named.Store(&named)
	n.mu.Lock()
	services := zone.Services(n.services, n.slices)
	n.mu.Unlock()
	n.server.SetZone(zone.New(n.zone, services, pods))
}

// namedPod returns what names of a pod depend on, or false if it has no addresses of its own.
func namedPod(p *agent.Pod) (zone.Pod, bool) {
	st, ok := p.Sandbox()
	if !ok || st.HostNetwork() || view.SandboxState(st) != podplan.SandboxReady {
		return zone.Pod{}, false
	}
	m := p.Manifest
	out := zone.Pod{Namespace: m.Namespace, Name: m.Name, Hostname: criconfig.Hostname(m)}
	if m.Spec.HostnameOverride == nil {
		out.Subdomain = m.Spec.Subdomain
	}
	for _, a := range st.Addresses() {
		out.Addresses = append(out.Addresses, a.Addr())
	}
	return out, len(out.Addresses) > 0
}

// close ends the server if it was never run.
func (n *names) close() {
	if n != nil {
		n.server.Close()
	}
}
