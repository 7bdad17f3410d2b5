package netcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// serviceView is a Service, as it is printed.
type serviceView struct {
	Namespace    string        `json:"namespace"`
	Name         string        `json:"name"`
	Type         string        `json:"type"`
	Addresses    []string      `json:"addresses"`
	ExternalName string        `json:"externalName,omitempty"`
	Ports        []servicePort `json:"ports"`
	Endpoints    int32         `json:"endpoints"` // of all nodes
	Ready        int32         `json:"ready"`
}

type servicePort struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"`
	Port     int32  `json:"port"`
	NodePort int32  `json:"nodePort,omitempty"`
	// Endpoints are those that get new connections.
	Endpoints []string `json:"endpoints"`
}

// shownEndpoints is how many endpoints of a port are in the table.
const shownEndpoints = 3

// Resource returns the Service's name as kubectl has it.
func (s serviceView) Resource() string { return "service/" + render.PodName(s.Namespace, s.Name) }

// ports describes the ports and where they lead.
func (s serviceView) ports() string {
	var out []string
	for _, p := range s.Ports {
		text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort != 0 {
			text = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
		shown := p.Endpoints[:min(len(p.Endpoints), shownEndpoints)]
		switch more := len(p.Endpoints) - len(shown); {
		case more > 0:
			text += fmt.Sprintf(" -> %s and %d more", strings.Join(shown, ","), more)
		case len(shown) > 0:
			text += " -> " + strings.Join(shown, ",")
		}
		out = append(out, text)
	}
	return orDash(out)
}

func (t *tool) services() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "services",
		Short: "List the Services, and the endpoints that their ports lead to.",
		Long: `List the Services, and the endpoints that their ports lead to.

A port is listed as PORT/PROTOCOL, or PORT:NODEPORT/PROTOCOL, with the endpoints
that get new connections. READY says how many of the endpoints do.`,
		Example: `husk net services
husk net services -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath, flags.Columns, flags.Name)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var answer *huskv1.ListServicesResponse
		err := t.ask(func(c *client.Client) (err error) {
			answer, err = c.ListServices(cmd.Context(), &huskv1.ListServicesRequest{})
			return err
		})
		if err != nil {
			return err
		}
		list := []serviceView{}
		for _, s := range answer.GetServices() {
			view := serviceView{s.Namespace, s.Name, s.Type, append([]string{}, s.Addresses...), s.ExternalName, []servicePort{}, s.Endpoints, s.Ready}
			for _, p := range s.Ports {
				view.Ports = append(view.Ports, servicePort{p.Name, p.Protocol, p.Port, p.NodePort, append([]string{}, p.Endpoints...)})
			}
			list = append(list, view)
		}
		return o.Print(t.Out, list, func() *render.Table {
			table := render.NewTable("NAME", "TYPE", "ADDRESSES", "READY", "PORTS")
			for _, s := range list {
				addresses := s.Addresses
				if s.ExternalName != "" {
					addresses = []string{s.ExternalName}
				}
				table.Row(s.Namespace+"/"+s.Name, s.Type, orDash(addresses), fmt.Sprintf("%d/%d", s.Ready, s.Endpoints), s.ports())
			}
			return table
		})
	}
	return cmd
}
