package netcmd

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// podPolicy is what network policy says about a pod, as it is printed.
type podPolicy struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Addresses []string  `json:"addresses"`
	Ingress   policyEnd `json:"ingress"`
	Egress    policyEnd `json:"egress"`
}

type policyEnd struct {
	Policies   []string       `json:"policies"`
	Restricted bool           `json:"restricted"` // what isn't allowed is denied
	Allowed    []allowedPorts `json:"allowed"`
	// Denied is how many packets were denied to all pods of the node with the same policies.
	Denied uint64 `json:"deniedPackets"`
}

func newPolicyEnd(e *huskv1.PolicyEnd) policyEnd {
	out := policyEnd{append([]string{}, e.GetPolicies()...), e.GetRestricted(), []allowedPorts{}, e.GetDenied()}
	for _, a := range e.GetAllowed() {
		out.Allowed = append(out.Allowed, allowedPorts{a.GetPorts(), append([]string{}, a.GetPeers()...), a.GetConnections()})
	}
	return out
}

type allowedPorts struct {
	Ports string   `json:"ports"`
	Peers []string `json:"peers"`
	// Connections counts those of all pods of the node with the same policies.
	Connections uint64 `json:"connections"`
}

func (e policyEnd) summary() string {
	switch {
	case !e.Restricted && len(e.Policies) == 0:
		return "everything"
	case !e.Restricted:
		return "everything: " + strings.Join(e.Policies, ", ")
	}
	return strings.Join(e.Policies, ", ")
}

func (t *tool) policy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy [POD]",
		Short: "List the network policies of this node's pods, or show what a pod's allow.",
		Long: `List the network policies of this node's pods, or show what a pod's allow.

POD is a name, or NAMESPACE/NAME. What the policies of a pod allow is listed by
port and other end; everything else is denied, except what comes from the node
itself, such as probes.`,
		Example: `husk net policy
husk net policy shop/web
husk net policy -o json`,
		Args:              usageerror.Takes(0, 1, "a pod"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := t.policies(cmd, args)
		if err != nil {
			return err
		}
		return o.Print(t.Out, list, func() *render.Table {
			if len(args) > 0 {
				return detailOf(list[0])
			}
			table := render.NewTable("POD", "ADDRESSES", "INGRESS", "EGRESS")
			for _, p := range list {
				table.Row(p.Namespace+"/"+p.Name, orDash(p.Addresses), p.Ingress.summary(), p.Egress.summary())
			}
			return table
		})
	}
	return cmd
}

// policies asks huskd for the pods, or for the one that args names.
func (t *tool) policies(cmd *cobra.Command, args []string) ([]podPolicy, error) {
	var answer *huskv1.ListPoliciesResponse
	err := t.ask(func(c *client.Client) (err error) {
		answer, err = c.ListPolicies(cmd.Context(), &huskv1.ListPoliciesRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	if note := answer.GetNote(); note != "" {
		_, _ = fmt.Fprintln(t.Errs, render.Clean(note))
	}
	list := []podPolicy{}
	for _, p := range answer.GetPods() {
		if len(args) == 0 || args[0] == p.Namespace+"/"+p.Name || "default/"+args[0] == p.Namespace+"/"+p.Name {
			list = append(list, podPolicy{p.Namespace, p.Name, p.Addresses, newPolicyEnd(p.Ingress), newPolicyEnd(p.Egress)})
		}
	}
	if len(args) > 0 && len(list) == 0 {
		return nil, fmt.Errorf("no pod %s of this node is in the pod network: \"husk net policy\" lists them", args[0])
	}
	return list, nil
}

func detailOf(p podPolicy) *render.Table {
	table := render.NewTable("DIRECTION", "POLICY", "ALLOWED", "CONNECTIONS", "DENIED")
	for _, d := range []struct {
		name string
		end  policyEnd
	}{{"ingress", p.Ingress}, {"egress", p.Egress}} {
		for i := range max(1, len(d.end.Allowed), len(d.end.Policies)) {
			row := [5]string{d.name}
			if i == 0 && d.end.Restricted {
				row[2], row[4] = "nothing", fmt.Sprintf("%d packets", d.end.Denied)
			} else if i == 0 {
				row[2] = "everything"
			}
			if i < len(d.end.Policies) {
				row[1] = d.end.Policies[i]
			}
			if i < len(d.end.Allowed) {
				a := d.end.Allowed[i]
				row[2], row[3] = strings.Join(append([]string{a.Ports}, a.Peers...), " "), strconv.FormatUint(a.Connections, 10)
			}
			table.Row(row[0], row[1], row[2], row[3], row[4])
		}
	}
	return table
}

func (t *tool) explain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain FROM TO [PORT[/PROTOCOL]]",
		Short: "Follow a connection hop by hop: routes, ways to other nodes, network policy.",
		Long: `Follow a connection hop by hop: routes, ways to other nodes, network policy.

FROM and TO are pods, addresses, or full names of hosts; TO may be a Service. A
pod or Service is NAME or NAMESPACE/NAME. Without PORT, the connection is of a
protocol without ports, such as ICMP; PROTOCOL is tcp, udp or sctp.

Each hop is what huskd has planned, compared with the kernel. The verdict is ok
or fails, allowed or denied by network policy, or differs if the kernel isn't as
planned. The answers take the same way back, and are part of the connection. Of
the hops on another node only the policies are shown: run the command there too.
The command fails if a hop does.`,
		Example: `husk net explain web db 5432
husk net explain shop/web 192.0.2.10 53/udp`,
		Args:              usageerror.Takes(2, 3, "two ends and a port"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &huskv1.ExplainConnectionRequest{From: args[0], To: args[1], Protocol: "1"}
		if len(args) == 3 {
			port, protocol, found := strings.Cut(args[2], "/")
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil || n == 0 {
				return fmt.Errorf("%q is not a port, such as 80 or 53/udp", args[2])
			}
			req.Port, req.Protocol = int32(n), "tcp"
			if found {
				req.Protocol = strings.ToLower(protocol)
			}
		}
		return t.explainConnection(cmd, req, o)
	}
	return cmd
}

// hop is a place that packets meet, as it is printed.
type hop struct {
	Where      string `json:"where"`
	Verdict    string `json:"verdict"`
	Allowed    bool   `json:"allowed"` // the packets pass
	Why        string `json:"why"`
	Difference string `json:"difference,omitempty"` // between the kernel and the plan
	Remedy     string `json:"remedy,omitempty"`
}

// row adds a hop to a table.
func (h hop) row(table *render.Table) {
	verdict, why := h.Verdict, []string{h.Why}
	if h.Difference != "" {
		verdict = "differs"
		why = append(why, "but "+h.Difference)
	}
	if h.Remedy != "" {
		why = append(why, h.Remedy)
	}
	table.Row(h.Where, verdict, strings.Join(why, "; "))
}

func (t *tool) explainConnection(cmd *cobra.Command, req *huskv1.ExplainConnectionRequest, o *flags.Output) error {
	var answer *huskv1.ExplainConnectionResponse
	err := t.ask(func(c *client.Client) (err error) {
		answer, err = c.ExplainConnection(cmd.Context(), req)
		return err
	})
	if err != nil {
		return err
	}
	list, denied, differs := []hop{}, false, false
	for _, h := range answer.GetHops() {
		list = append(list, hop{h.Where, h.Verdict, h.Allowed, h.Why, h.Difference, h.Remedy})
		denied, differs = denied || h.Verdict == "denied", differs || h.Difference != ""
	}
	err = o.Print(t.Out, list, func() *render.Table {
		table := render.NewTable("WHERE", "VERDICT", "WHY")
		for _, h := range list {
			h.row(table)
		}
		return table
	})
	switch {
	case err != nil:
		return err
	case denied:
		return fmt.Errorf("the connection from %s to %s is denied", req.From, req.To)
	case !answer.GetAllowed():
		return fmt.Errorf("the connection from %s to %s can't be made", req.From, req.To)
	case differs:
		return fmt.Errorf("the kernel differs from what huskd has planned: huskd repairs it, \"husk doctor\" says more")
	}
	return nil
}
