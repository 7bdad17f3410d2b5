package netcmd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cni"
)

// network is a configuration as ls shows it.
type network struct {
	File    string   `json:"file"`
	Name    string   `json:"name,omitempty"`
	Version string   `json:"cniVersion,omitempty"`
	Plugins []string `json:"plugins,omitempty"`
	Skipped string   `json:"skipped,omitempty"` // why
}

func (t *tool) ls() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the networks, and why a file is none.",
		Example: `husk net ls
husk net ls --conf-dir /tmp/net.d -o json`,
		Args:              t.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	show := t.Shows(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return t.with(cmd.Context(), func(b *cni.Standalone) error {
			now := b.Networks()
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
			return show(list, func() *render.Table {
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
		Short: "Say what is wrong with a configuration, or with its plugins.",
		Example: `husk net validate /etc/cni/net.d/10-web.conflist
husk net validate new.conflist --bin-dir /tmp/bin`,
		Args: t.Takes(1, 1, "a FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.with(cmd.Context(), func(b *cni.Standalone) error {
				list, err := b.Validate(args[0])
				if err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				_, err = fmt.Fprintf(t.Out, "network %s is usable, with cniVersion %s\n", list.Name, list.CNIVersion)
				return err
			})
		},
	}
}

func (t *tool) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status NETWORK",
		Short: "Ask the plugins of a network whether they can attach anything.",
		Example: `husk net status web
husk net status web --conf-dir /tmp/net.d`,
		Args:              t.Takes(1, 1, "a NETWORK"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.with(cmd.Context(), func(b *cni.Standalone) error { return b.Status(cmd.Context(), args[0]) })
		},
	}
}

func (t *tool) version() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version NETWORK",
		Short: "Ask the plugins of a network which versions of CNI they speak.",
		Example: `husk net version web
husk net version web -o json`,
		Args:              t.Takes(1, 1, "a NETWORK"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	show := t.Shows(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return t.with(cmd.Context(), func(b *cni.Standalone) error {
			list, err := b.Versions(args[0])
			if err != nil {
				return err
			}
			return show(list, func() *render.Table {
				table := render.NewTable("PLUGIN", "VERSIONS")
				for _, s := range list {
					table.Row(s.Plugin, strings.Join(s.Versions, " "))
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
		Short: "Have a network's plugins remove what isn't of an attachment to keep.",
		Long: `Have a network's plugins remove what isn't of an attachment to keep.

All that is not named is removed, also what other runtimes have attached. So
there is no default: name every attachment, or say that there are none.`,
		Example: `husk net gc web --keep 5f0c1a/eth0 --keep 77ab03/eth0
husk net gc web --keep-none`,
		Args:              t.Takes(1, 1, "a NETWORK"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringSliceVar(&keep, "keep", nil, "an attachment, as CONTAINER/IFNAME")
	cmd.Flags().BoolVar(&none, "keep-none", false, "remove all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if none == (len(keep) > 0) {
			return errors.New("either --keep for every attachment or --keep-none is needed: what isn't kept is removed")
		}
		valid := []types.GCAttachment{}
		for _, s := range keep {
			id, ifName, ok := strings.Cut(s, "/")
			if !ok || id == "" || ifName == "" {
				return fmt.Errorf("--keep: %q is not CONTAINER/IFNAME", s)
			}
			valid = append(valid, types.GCAttachment{ContainerID: id, IfName: ifName})
		}
		return t.with(cmd.Context(), func(b *cni.Standalone) error { return b.GC(cmd.Context(), args[0], valid) })
	}
	return cmd
}
