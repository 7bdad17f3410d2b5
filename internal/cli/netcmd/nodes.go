package netcmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// nodeStatus is a node of the pod network, as it is printed.
type nodeStatus struct {
	Name      string    `json:"name"`
	Self      bool      `json:"self"`
	Addresses []string  `json:"addresses"`
	Blocks    []string  `json:"blocks"`
	Way       string    `json:"way,omitempty"` // empty if packets can't reach it
	Why       string    `json:"why,omitempty"` // why not by the preferred way; of this node, what it is doing
	MTU       int       `json:"mtu,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Routes    []string  `json:"routes,omitempty"`
	// Of the heartbeat; zero if the node has never answered, and the RTT if it has stopped to.
	RTT      time.Duration `json:"rttNanoseconds,omitempty"`
	Loss     float64       `json:"loss,omitempty"`
	Answered time.Time     `json:"answered,omitzero"`
}

// poolStatus is a subnet from which pods of this node get addresses, as it is printed.
type poolStatus struct {
	Block       string `json:"block"`
	Size        int    `json:"size"`
	Used        int    `json:"used"`
	Quarantined int    `json:"quarantined"`
}

// network asks huskd for the state of its pod network. It prints what isn't as it should be.
func (t *tool) network(cmd *cobra.Command) (answer *huskv1.NetworkStatusResponse, err error) {
	err = t.ask(func(c *client.Client) (err error) {
		answer, err = c.NetworkStatus(cmd.Context(), &huskv1.NetworkStatusRequest{})
		return err
	})
	notes := answer.GetNotes()
	if e := answer.GetError(); e != "" {
		notes = append(notes, e)
	}
	for _, note := range notes {
		_, _ = fmt.Fprintln(t.Errs, render.Clean(note))
	}
	return answer, err
}

func nodesOf(answer *huskv1.NetworkStatusResponse) []nodeStatus {
	list := []nodeStatus{}
	for _, n := range answer.GetNodes() {
		one := nodeStatus{Name: n.Name, Self: n.Self, Addresses: n.Addresses, Blocks: n.Blocks, Way: n.Way, Why: n.Why, MTU: int(n.Mtu), Routes: n.Routes}
		if n.SinceNs > 0 {
			one.Since = time.Unix(0, n.SinceNs)
		}
		if n.AnsweredNs > 0 {
			one.RTT, one.Loss, one.Answered = time.Duration(n.RttNs), n.Loss, time.Unix(0, n.AnsweredNs)
		}
		list = append(list, one)
	}
	return list
}

// inquiry completes a command that shows part of huskd's answer: as list, or as a table.
func (t *tool) inquiry(cmd *cobra.Command, show func(*huskv1.NetworkStatusResponse) (list any, table func() *render.Table)) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = usageerror.Takes(0, 0, ""), cobra.NoFileCompletions
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		answer, err := t.network(cmd)
		if err != nil {
			return err
		}
		list, table := show(answer)
		return o.Print(t.Out, list, table)
	}
	return cmd
}

func (t *tool) nodes() *cobra.Command {
	return t.inquiry(&cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the pod network, and how packets reach their pods.",
		Long: `List the nodes of the pod network, and how packets reach their pods.

The column WAY shows direct for packets that go to the node without any
encapsulation, and none if packets can't reach the node. RTT and LOSS are those
of the probes that nodes exchange all the time; - if the node never answered.
If it has stopped to, NOTE says since when, and there is no RTT.`,
		Example: `husk net nodes
husk net nodes -o json`,
	}, func(answer *huskv1.NetworkStatusResponse) (any, func() *render.Table) {
		list := nodesOf(answer)
		return list, func() *render.Table {
			table := render.NewTable("NODE", "ADDRESSES", "PODS", "WAY", "MTU", "RTT", "LOSS", "SINCE", "NOTE")
			for _, n := range list {
				n.row(table)
			}
			return table
		}
	})
}

func (n nodeStatus) row(table *render.Table) {
	way, note, rtt, loss, since := n.Way, n.Why, "-", "-", "-"
	switch {
	case n.Self:
		way, note = "-", strings.TrimSuffix("this node: "+n.Why, ": ")
	case way == "":
		way = "none"
	}
	if !n.Answered.IsZero() {
		loss = fmt.Sprintf("%.0f%%", 100*n.Loss)
	}
	if n.RTT > 0 {
		rtt = n.RTT.Round(10 * time.Microsecond).String()
	}
	if !n.Since.IsZero() {
		since = render.Age(time.Since(n.Since))
	}
	table.Row(n.Name, orDash(n.Addresses), orDash(n.Blocks), way, n.MTU, rtt, loss, since, note)
}

func (t *tool) pools() *cobra.Command {
	return t.inquiry(&cobra.Command{
		Use:   "pools",
		Short: "List the subnets from which this node's pods get addresses.",
		Example: `husk net pools
husk net pools -o json`,
	}, func(answer *huskv1.NetworkStatusResponse) (any, func() *render.Table) {
		list := []poolStatus{}
		for _, p := range answer.GetPools() {
			list = append(list, poolStatus{p.Block, int(p.Size), int(p.Used), int(p.Quarantined)})
		}
		return list, func() *render.Table {
			table := render.NewTable("SUBNET", "ADDRESSES", "USED", "QUARANTINED", "FREE")
			for _, p := range list {
				table.Row(p.Block, p.Size, p.Used, p.Quarantined, p.Size-p.Used-p.Quarantined)
			}
			return table
		}
	})
}

func (t *tool) routes() *cobra.Command {
	return t.inquiry(&cobra.Command{
		Use:   "routes",
		Short: "List this node's routes to pods of other nodes.",
		Long: `List this node's routes to pods of other nodes.

In "ip route" they have protocol 104.`,
		Example: `husk net routes
husk net routes -o json`,
	}, func(answer *huskv1.NetworkStatusResponse) (any, func() *render.Table) {
		list := nodesOf(answer)
		return list, func() *render.Table {
			table := render.NewTable("NODE", "WAY", "ROUTE")
			for _, n := range list {
				for _, r := range n.Routes {
					table.Row(n.Name, n.Way, strings.TrimPrefix(r, "route "))
				}
			}
			return table
		}
	})
}

func (t *tool) rotateKey() *cobra.Command {
	var req huskv1.RotateKeyRequest
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Change this node's WireGuard key.",
		Long: `Change this node's WireGuard key.

The command returns at once. No packet is lost: for a minute or so, nodes
exchange packets by a second link of UDP port 51822, while the key of the first
one changes. "husk net nodes" shows when the change is done. It waits for all
nodes that can be reached by the present key. With --now, a change that waits
goes on; those nodes lose packets until they know the new key.`,
		Example: `husk net rotate-key
husk net rotate-key --now`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.ask(func(c *client.Client) error {
				_, err := c.RotateKey(cmd.Context(), &req)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&req.Now, "now", false, "don't let the change wait for other nodes any longer")
	return cmd
}

// orDash returns the items, or - if there are none.
func orDash(items []string) string {
	if len(items) == 0 {
		return "-"
	}
	return strings.Join(items, ",")
}
