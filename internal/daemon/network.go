package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/displaced"
	"github.com/huskd/husk/internal/network/explain"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/peering"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/service/placement"
	"github.com/huskd/husk/internal/plugin"
	"github.com/huskd/husk/internal/plugin/rpc"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// debts returns the DELs that are owed. Of the built-in network only those that failed count: each
// deleted link waits a moment for others, to be deleted with them.
func (d *daemon) debts() (list []pod.Debt) {
	if d.cni != nil {
		for _, a := range d.cni.Attachments() {
			if a.Owed() {
				list = append(list, pod.Debt{Attachment: a.Attachment, Network: a.Network, Since: a.Since, Tries: a.Tries, Error: a.Error})
			}
		}
	}
	for _, debt := range d.network.Usage().Debts {
		if debt.Error != "" {
			list = append(list, debt)
		}
	}
	return list
}

// servePlugin serves connections of the program husk-cni, which uses the same socket as all other
// clients. A call that is still running when huskd stops is cut off, as by a crash: the next call
// completes it.
func (d *daemon) servePlugin(ctx context.Context) func(net.Conn) {
	p := &plugin.Plugin{Log: d.log, Node: nodeNetwork{d.network.External(), d.nodes, d.displaced}}
	return func(conn net.Conn) { rpc.Serve(ctx, conn, p.Call) }
}

// nodeNetwork is the built-in network for the pods of another runtime.
type nodeNetwork struct {
	network.External
	nodes     *peering.Peering
	displaced *displaced.Watcher
}

// Verify also returns an error of kind failed precondition if an address of the pod isn't this
// node's any more.
func (n nodeNetwork) Verify(ctx context.Context, sandbox string) (plan.Plan, error) {
	p, err := n.External.Verify(ctx, sandbox)
	if why := n.displaced.Why(sandbox); err == nil && why != "" {
		err = errdefs.ErrFailedPrecondition.WithMessage(why)
	}
	return p, err
}

// Status returns why no pod can be attached now.
func (n nodeNetwork) Status(ctx context.Context) error {
	if c := n.nodes.Controller(); c != nil {
		if reason := c.Status().Error; reason != "" {
			return errdefs.ErrUnavailable.WithMessage("ways to other nodes: " + reason)
		}
	}
	return n.External.Status(ctx)
}

// pathEvents returns what adds events of this node to those that users see.
func pathEvents(d *daemon) func(nodes.Event) {
	return func(e nodes.Event) {
		if d.agent != nil { // huskd runs pods
			d.agent.Events.Add(event.Event{Warning: e.Warning, Reason: e.Reason, Message: e.Message})
		}
	}
}

// displacedConfig says what becomes of pods whose addresses aren't this node's any more.
func displacedConfig(d *daemon) displaced.Config {
	return displaced.Config{
		Pods: func() []displaced.Pod { return attached(d) }, Spare: d.network.Status, Replace: d.cfg.ReplaceDisplaced, Log: d.log,
		Mark: func(sandbox string, m pod.Displacement) bool {
			return d.sandboxes == nil || d.sandboxes.Displace(sandbox, m) // with network-only, huskd has no pods
		},
		Report: func(p displaced.Pod, warning bool, reason, message string) {
			if d.agent != nil { // huskd runs pods
				d.agent.Events.Add(event.Event{Pod: p.Ref.String(), UID: p.Ref.UID, Warning: warning, Reason: reason, Message: message})
			}
		},
	}
}

// attached returns the pods that have addresses of the built-in network.
func attached(d *daemon) (out []displaced.Pod) {
	add := func(of pod.Attachment, a pod.Attached, external bool) {
		p := displaced.Pod{Sandbox: of.Sandbox, Ref: of.Pod, External: external}
		for _, address := range a.Addresses {
			p.Addresses = append(p.Addresses, address.Addr())
		}
		out = append(out, p)
	}
	for _, a := range d.network.External().List() {
		add(a.Attachment, a.Attached, true)
	}
	if d.sandboxes == nil {
		return out // network-only
	}
	for _, st := range d.sandboxes.List() {
		for _, a := range st.Attached {
			if st.State == sandboxstate.Ready && a.Network == network.Name {
				add(st.Attachment, a, false)
			}
		}
	}
	return out
}

// addressTime is how long an address for pods that wait for one is noticed late.
const addressTime = 100 * time.Millisecond

// awaitAddresses makes pods that got no address try again as soon as the network can give them one,
// such as when this node has got a block, until ctx ends. If it can already, it isn't known what
// they wait for.
func awaitAddresses(ctx context.Context, d *daemon) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.agent.Unattached:
		}
		waited := false
		for ; d.network.Status() != nil; waited = true {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(addressTime):
			}
		}
		if waited {
			d.agent.Attachable()
		}
	}
}

// podEvent returns what adds events of a pod, as namespace/name.
func podEvent(d *daemon, reason string) func(pod, message string) {
	return func(pod, message string) {
		if d.agent != nil { // huskd runs pods
			d.agent.Events.Add(event.Event{Pod: pod, Warning: true, Reason: reason, Message: message})
		}
	}
}

// explainer returns what explains connections.
func explainer(d *daemon) explain.Explainer {
	e := explain.Explainer{Network: d.network, Firewall: d.policy.Owner(), Connections: d.network.Connections}
	if c := d.nodes.Controller(); c != nil {
		e.Nodes, e.Verify = c.Status, d.nodes.Verify
	}
	if b := d.services.Balancer(); b != nil {
		e.Services = b.World
	}
	return e
}

// others returns what says where other nodes and DNS servers are.
func others(d *daemon) func() []placement.Place {
	return func() (out []placement.Place) {
		add := func(kind placement.Kind, of string, at ...netip.Addr) {
			for _, a := range at {
				a = a.Unmap().WithZone("")
				out = append(out, placement.Place{Kind: kind, Prefix: netip.PrefixFrom(a, a.BitLen()), Of: of})
			}
		}
		own := plan.Resolvers(d.instance)
		add(placement.Resolver, "of pods", own[:]...)
		add(placement.Resolver, "of this node", resolvConf(d.cfg).Resolvers()...)
		for _, p := range d.nodesStatus().Peers {
			add(placement.Node, p.Name, p.Addresses...)
		}
		return out
	}
}

// goneTime is how often huskd looks for pods of another runtime that ended without a DEL.
const goneTime = time.Minute

// releaseGone releases the addresses of such pods until ctx ends.
func (d *daemon) releaseGone(ctx context.Context) error {
	tick := time.NewTicker(goneTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := d.network.External().ReleaseGone(ctx); err != nil {
			d.log.Warn("network: releasing the addresses of pods that are gone failed and will be retried", "error", err)
		}
	}
}

func (d *daemon) externalAttachments() (out []pod.Attachment) {
	for _, a := range d.network.External().List() {
		out = append(out, a.Attachment)
	}
	return out
}

// leave returns how this node leaves the network of nodes, nil if it has nothing in a store.
func leave(d *daemon) func(context.Context) error {
	if !d.nodes.CanLeave() {
		return nil
	}
	return func(ctx context.Context) error {
		return d.nodes.Leave(ctx, func() error { return unused(d.network) })
	}
}

// unused waits for links that are being deleted, and returns an error if a pod has an address.
func unused(pods *network.Network) error {
	for end := time.Now().Add(closeTime); ; time.Sleep(reapTime) {
		u := pods.Usage()
		used := u.Attached + len(u.Debts)
		for _, r := range u.Ranges {
			used = max(used, r.Used) // also those that pods get now
		}
		if used == 0 {
			return nil
		}
		if time.Now().After(end) {
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%d pods have addresses of this node, so it can't leave: remove the pods that husk net attachments lists", used))
		}
	}
}
