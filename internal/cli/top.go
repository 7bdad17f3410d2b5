package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/top"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newTop(a *app) *cobra.Command {
	var once, containers bool
	var by string
	cmd := &cobra.Command{
		Use:   "top [POD]",
		Short: "Show what pods use of the machine.",
		Long: `Show what pods use of the machine.

That are processors, memory that can't be dropped, processes and threads, and
their network's traffic. Rates are those of the last second.

On a terminal the table is kept current until ctrl-c. Of one POD, each container
has a row.`,
		Example: `husk top
husk top web
husk top --containers --sort-by memory --once
husk top -o json`,
		Args:              usageerror.Takes(0, 1, "the NAME of a pod"),
		ValidArgsFunction: completer{a}.pod,
	}
	cmd.Flags().BoolVar(&once, "once", false, "print the table once")
	cmd.Flags().BoolVar(&containers, "containers", false, "a row for each container")
	cmd.Flags().StringVar(&by, "sort-by", "name", "name, cpu or memory, the most first")
	o := addOutput(cmd, asJSON, asYAML)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if by != "name" && by != "cpu" && by != "memory" {
			return usageerror.Misuse(cmd, "--sort-by: %q is none of name, cpu, memory", by)
		}
		containers = containers || len(args) > 0
		return nil
	}
	cmd.RunE = a.asks(func(ctx context.Context, c *client.Client, args []string) error {
		t := &top.Top{Client: c, By: by, Containers: containers, Pod: strings.Join(args, "")}
		if err := t.Begin(ctx); err != nil {
			return err
		}
		if *o == asTable && !once && terminal.Fancy(a.out) {
			return t.Follow(ctx, a.out)
		}
		if len(t.Views) == 0 && *o == asTable {
			_, _ = fmt.Fprintln(a.errs, "no pods run: husk ps -a lists those that ended too")
		}
		return a.show(*o, t.Views, t.Table)
	})
	return cmd
}
