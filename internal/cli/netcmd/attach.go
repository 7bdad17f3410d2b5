package netcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/netns"
)

// operation completes a command that takes a network and a namespace. With mayBeGone, the namespace
// need not exist.
func (t *tool) operation(cmd *cobra.Command, mayBeGone bool, do func(context.Context, *cni.Standalone, cni.Target) error) *cobra.Command {
	var f attachFlags
	f.add(cmd)
	cmd.Args = usageerror.Takes(2, 2, "NETWORK and NETNS")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := t.namespace(cmd.Context(), args[1])
		if err == nil && !netns.Pinned(path) {
			err = fmt.Errorf("%s is not a network namespace", path)
		}
		if err != nil && !mayBeGone {
			return err
		}
		target, err := f.target(args[0], path)
		if err != nil {
			return err
		}
		return t.with(cmd.Context(), func(s *cni.Standalone) error { return do(cmd.Context(), s, target) })
	}
	return cmd
}

func (t *tool) add() *cobra.Command {
	return t.operation(&cobra.Command{
		Use:   "add NETWORK NETNS",
		Short: "Attach a namespace to a network and print the result.",
		Example: `husk net add web testing
husk net add web /run/netns/testing --ifname net1 --args "IP=10.1.2.3"
husk net add web 4711 --cap 'portMappings=[{"hostPort":80,"containerPort":80}]'`,
	}, false, func(ctx context.Context, s *cni.Standalone, target cni.Target) error {
		result, err := s.Add(ctx, target)
		if err != nil {
			return err
		}
		return t.print(result)
	})
}

func (t *tool) del() *cobra.Command {
	return t.operation(&cobra.Command{
		Use:   "del NETWORK NETNS",
		Short: "Detach a namespace, which may already be gone, from a network.",
		Example: `husk net del web testing
husk net del web /run/netns/testing --ifname net1`,
	}, true, func(ctx context.Context, s *cni.Standalone, target cni.Target) error { return s.Del(ctx, target) })
}

func (t *tool) check() *cobra.Command {
	return t.operation(&cobra.Command{
		Use:   "check NETWORK NETNS",
		Short: "Check that an attachment is still as add left it.",
		Example: `husk net check web testing
husk net check web testing --ifname net1`,
	}, false, func(ctx context.Context, s *cni.Standalone, target cni.Target) error { return s.Check(ctx, target) })
}

func (t *tool) plan() *cobra.Command {
	var op string
	cmd := t.operation(&cobra.Command{
		Use:   "plan NETWORK NETNS",
		Short: "Show which plugins would be run and with what input, without running them.",
		Example: `husk net plan web testing
husk net plan web testing --operation DEL`,
	}, true, func(_ context.Context, s *cni.Standalone, target cni.Target) error {
		if ops := []string{"ADD", "DEL", "CHECK"}; !slices.Contains(ops, op) {
			return fmt.Errorf("--operation: %q is not one of %s", op, strings.Join(ops, ", "))
		}
		steps, err := s.Explain(target, op)
		if err != nil {
			return err
		}
		return t.print(steps)
	})
	cmd.Flags().StringVar(&op, "operation", "ADD", "ADD, DEL or CHECK")
	return cmd
}
