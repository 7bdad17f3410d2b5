package netcmd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/cni"
)

// network is a file of the configuration directory, as ls prints it.
type network struct {
	File    string   `json:"file"`
	Name    string   `json:"name,omitempty"`
	Version string   `json:"cniVersion,omitempty"`
	Plugins []string `json:"plugins,omitempty"`
	Skipped string   `json:"skipped,omitempty"` // why it is not used
}

func (t *tool) ls() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the networks, and the files that are skipped with the reason.",
		Example: `husk net ls
husk net ls --conf-dir /tmp/net.d -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return t.with(cmd.Context(), func(s *cni.Standalone) error {
			now := s.Networks()
			list := []network{}
			for _, n := range now.Networks {
				v := network{File: n.File, Name: n.List.Name, Version: n.List.CNIVersion}
				for _, p := range n.List.Plugins {
					v.Plugins = append(v.Plugins, p.Network.Type)
				}
				list = append(list, v)
			}
			for _, s := range now.Skipped {
				list = append(list, network{File: s.File, Skipped: s.Why})
			}
			if len(list) == 0 {
				_, _ = fmt.Fprintf(t.Errs, "no networks in %s\n", t.conf)
			}
			return o.Print(t.Out, list, func() *render.Table {
				table := render.NewTable("NETWORK", "VERSION", "FILE", "PLUGINS")
				for _, n := range list {
					if n.Skipped != "" {
						table.Row("-", "-", n.File, render.Cell{Text: "skipped: " + n.Skipped, Style: render.Bad})
						continue
					}
					table.Row(n.Name, n.Version, n.File, strings.Join(n.Plugins, " "))
				}
				return table
			})
		})
	}
	return cmd
}

func (t *tool) validate() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Validate a network configuration and its plugins.",
		Example: `husk net validate /etc/cni/net.d/10-web.conflist
husk net validate new.conflist --bin-dir /tmp/bin`,
		Args: usageerror.Takes(1, 1, "a FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.with(cmd.Context(), func(s *cni.Standalone) error {
				list, err := s.Validate(args[0])
				if err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				_, err = fmt.Fprintf(t.Out, "network %s is valid, cniVersion %s\n", list.Name, list.CNIVersion)
				return err
			})
		},
	}
}

func (t *tool) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status NETWORK",
		Short: "Ask the plugins of a network whether they are ready to attach pods.",
		Example: `husk net status web
husk net status web --conf-dir /tmp/net.d`,
		Args:              usageerror.Takes(1, 1, "a NETWORK"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.with(cmd.Context(), func(s *cni.Standalone) error { return s.Status(cmd.Context(), args[0]) })
		},
	}
}

func (t *tool) version() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version NETWORK",
		Short: "Ask the plugins of a network which versions of CNI they support.",
		Example: `husk net version web
husk net version web -o json`,
		Args:              usageerror.Takes(1, 1, "a NETWORK"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return t.with(cmd.Context(), func(s *cni.Standalone) error {
			list, err := s.Versions(args[0])
			if err != nil {
				return err
			}
			return o.Print(t.Out, list, func() *render.Table {
				table := render.NewTable("PLUGIN", "VERSIONS")
				for _, p := range list {
					table.Row(p.Plugin, strings.Join(p.Versions, " "))
				}
				return table
			})
		})
	}
	return cmd
}

func (t *tool) gc() *cobra.Command {
	var keep []string
	var none bool
	cmd := &cobra.Command{
		Use:   "gc NETWORK",
		Short: "Remove what a network's plugins hold for attachments that are not kept.",
		Long: `Remove what a network's plugins hold for attachments that are not kept.

Everything that is not named is removed, even attachments of other runtimes. So
there is no default: name every attachment to keep, or say --keep-none.`,
		Example: `husk net gc web --keep 5f0c1a/eth0 --keep 77ab03/eth0
husk net gc web --keep-none`,
		Args:              usageerror.Takes(1, 1, "a NETWORK"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringSliceVar(&keep, "keep", nil, "an attachment to keep, as CONTAINER/IFNAME; repeatable")
	cmd.Flags().BoolVar(&none, "keep-none", false, "keep no attachment")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if none == (len(keep) > 0) {
			return errors.New("give either --keep for every attachment or --keep-none: what isn't kept is removed")
		}
		valid := []types.GCAttachment{}
		for _, k := range keep {
			id, ifName, ok := strings.Cut(k, "/")
			if !ok || id == "" || ifName == "" {
				return fmt.Errorf("--keep: %q is not CONTAINER/IFNAME", k)
			}
			valid = append(valid, types.GCAttachment{ContainerID: id, IfName: ifName})
		}
		return t.with(cmd.Context(), func(s *cni.Standalone) error { return s.GC(cmd.Context(), args[0], valid) })
	}
	return cmd
}
