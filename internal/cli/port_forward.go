package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/portforward"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newPortForward(a *app) *cobra.Command {
	var f portforward.Forwarding
	cmd := &cobra.Command{
		Use:   "port-forward POD [LOCAL:]REMOTE...",
		Short: "Forward ports of this machine to a pod.",
		Long: `Forward ports of this machine to a pod.

Forwarding ends with ctrl-c, or when the pod is gone. REMOTE is a TCP port of
the pod: a number, or the name of a container's port. Connections reach it on
the pod's loopback, so the server need not listen elsewhere. LOCAL defaults to
the same number; if it is 0 or empty before the colon, a free port is chosen.`,
		Example: `husk port-forward web 8080:80
husk port-forward web 5000 8443:https
husk port-forward deployment/web :http
husk port-forward --address localhost,198.51.100.1 web 8080:80`,
		Args:              usageerror.Takes(2, -1, "the NAME of a pod and a PORT"),
		ValidArgsFunction: a.completePod,
	}
	cmd.Flags().StringSliceVar(&f.Addresses, "address", []string{portforward.Localhost}, "IP addresses of this machine to listen on, or localhost")
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		for _, arg := range args[1:] {
			p, err := portforward.Parse(arg)
			if err != nil {
				return usageerror.Misuse(cmd, "%v", err)
			}
			f.Ports = append(f.Ports, p)
		}
		for _, address := range f.Addresses {
			if err := portforward.CheckAddress(address); err != nil {
				return usageerror.Misuse(cmd, "--address: %v", err)
			}
		}
		f.Pod = strings.TrimPrefix(args[0], "pod/") // kubectl allows this prefix
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		f.Client, f.Out, f.Errs = c, a.out, a.errs
		return f.Run(ctx)
	})
	return cmd
}
