package netcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/netns"
)

// on makes a command about a network and a namespace.
func (t *tool) on(cmd *cobra.Command, gone bool, do func(context.Context, *cni.Standalone, cni.Target) error) *cobra.Command {
	var o order
	o.flags(cmd)
	cmd.Args = t.Takes(2, 2, "NETWORK and NETNS")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := t.namespace(cmd.Context(), args[1])
		if err == nil && !netns.Pinned(path) {
			err = fmt.Errorf("%s is no network namespace", path)
		}
		if err != nil && !gone {
			return err
		}
		order, err := o.of(args[0], path)
		if err != nil {
			return err
		}
		return t.with(cmd.Context(), func(b *cni.Standalone) error { return do(cmd.Context(), b, order) })
	}
	return cmd
}

func (t *tool) add() *cobra.Command {
	return t.on(&cobra.Command{
		Use:   "add NETWORK NETNS",
		Short: "Attach a namespace to a network and print the result.",
		Example: `husk net add web testing
husk net add web /run/netns/testing --ifname net1 --args "IP=10.1.2.3"
husk net add web 4711 --cap 'portMappings=[{"hostPort":80,"containerPort":80}]'`,
	}, false, func(ctx context.Context, b *cni.Standalone, o cni.Target) error {
		result, err := b.Add(ctx, o)
		if err != nil {
			return err
		}
		return t.print(result)
	})
}

func (t *tool) del() *cobra.Command {
	return t.on(&cobra.Command{
		Use:   "del NETWORK NETNS",
		Short: "Detach a namespace, which may be gone, from a network.",
		Example: `husk net del web testing
husk net del web /run/netns/testing --ifname net1`,
	}, true, func(ctx context.Context, b *cni.Standalone, o cni.Target) error { return b.Del(ctx, o) })
}

func (t *tool) check() *cobra.Command {
	return t.on(&cobra.Command{
		Use:   "check NETWORK NETNS",
		Short: "Check that an attachment is as it was made.",
		Example: `husk net check web testing
husk net check web testing --ifname net1`,
	}, false, func(ctx context.Context, b *cni.Standalone, o cni.Target) error { return b.Check(ctx, o) })
}

func (t *tool) explain() *cobra.Command {
	var op string
	cmd := t.on(&cobra.Command{
		Use:   "explain NETWORK NETNS",
		Short: "Show what would be run, and run nothing.",
		Example: `husk net explain web testing
husk net explain web testing --operation DEL`,
	}, true, func(_ context.Context, b *cni.Standalone, o cni.Target) error {
		if ops := []string{"ADD", "DEL", "CHECK"}; !slices.Contains(ops, op) {
			return fmt.Errorf("--operation: %q is none of %s", op, strings.Join(ops, ", "))
		}
		steps, err := b.Explain(o, op)
		if err != nil {
			return err
		}
		return t.print(steps)
	})
	cmd.Flags().StringVar(&op, "operation", "ADD", "ADD, DEL or CHECK")
	return cmd
}
