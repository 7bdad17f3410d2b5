package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/preflight"
	"github.com/huskd/husk/internal/pod"
)

// Status returns nil if a pod could be attached now and reach something, and otherwise the reason
// why not.
func (n *Network) Status() error {
	errs := []error{n.ledger.exhausted()}
	errs = append(errs, n.dp.InNode(func() error {
		for _, name := range plan.ForNode(n.base).Sysctls {
			value, err := datapath.ReadSysctl(name)
			if err != nil {
				return err
			}
			if value == "0" {
				name = strings.ReplaceAll(name, "/", ".")
				return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s is 0, so pods can't reach anything: run sysctl -w %s=1", name, name))
			}
		}
		return nil
	}))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	return nil
}

// Settings are the network's effective settings.
type Settings struct {
	Network    string         `json:"network"`
	Mode       plan.Mode      `json:"mode"`
	Subnets    []netip.Prefix `json:"subnets"`           // of this node
	Cluster    []netip.Prefix `json:"cluster,omitempty"` // of all nodes, if there are others
	Gateways   []netip.Addr   `json:"gateways"`
	Masquerade bool           `json:"masquerade"`
	MTU        int            `json:"mtu"`    // for the next pod
	Uplink     string         `json:"uplink"` // empty if there is none
	Table      string         `json:"table"`  // of nftables, family inet
	// Notes say which part of the configuration isn't in effect.
	Notes []string `json:"notes,omitempty"`
}

// Settings returns the current settings.
func (n *Network) Settings() (Settings, error) {
	s := Settings{
		Network:    Name,
		Mode:       n.cfg.Mode,
		Subnets:    slices.Clone(n.share.Load().Blocks),
		Cluster:    slices.Clone(n.base.Cluster),
		Masquerade: n.cfg.Masquerade,
		Table:      n.cfg.Instance.Table(),
		Notes:      slices.Clone(n.notes),
	}
	for _, subnet := range s.Subnets {
		gateway := plan.Gateway(subnet.Addr())
		if n.cfg.Mode == plan.Bridge {
			gateway = plan.First(subnet)
		}
		if !slices.Contains(s.Gateways, gateway) {
			s.Gateways = append(s.Gateways, gateway)
		}
	}
	uplink, err := n.dp.Uplink()
	s.MTU, s.Uplink = n.mtu(uplink), uplink.Link
	return s, err
}

// Usage counts what is in use.
type Usage struct {
	Ranges   []ipam.Usage `json:"ranges"`
	Attached int          `json:"attached"`
	// Debts are detached interfaces whose links aren't deleted yet. Their addresses aren't
	// available until then.
	Debts []pod.Debt `json:"debts,omitempty"`
}

// Usage returns what is in use now.
func (n *Network) Usage() Usage {
	u := Usage{Debts: n.reaper.debts()}
	u.Ranges, u.Attached = n.ledger.usage()
	return u
}

// BlockingFirewalls returns the firewalls on the node that drop pods' traffic, with the commands
// that let it pass.
func (n *Network) BlockingFirewalls() (out []preflight.BlockingFirewall, err error) {
	err = n.dp.InNode(func() error {
		out, err = preflight.ForwardPolicy(n.cfg.Instance, n.cfg.Mode)
		return err
	})
	return out, err
}
