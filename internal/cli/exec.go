package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/session"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newExec(a *app) *cobra.Command {
	start := &huskv1.SessionStart{}
	cmd := &cobra.Command{
		Use:                   "exec [-i] [-t] POD [-c NAME] -- CMD [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a program in a running container.",
		Long: `Run a program in a running container.

Exit codes: the program's own; 128+N if signal N killed it; 126 if it can't be
executed and 127 if it doesn't exist; 125 if husk or huskd failed; 2 for an
invalid command line. Without -t, ctrl-c ends the program.`,
		Example: `husk exec web -- ls -l /etc
husk exec -it web -- sh
husk exec deployment/web -- env
husk exec -i db -c postgres -- psql < dump.sql`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case len(args) == 0 || dash == 0:
				return usageerror.Misuse(cmd, "husk exec needs the name of a POD, then -- and the program")
			case dash < 0 && len(args) > 1:
				return usageerror.Misuse(cmd, "husk exec needs -- before the program: husk exec %s -- %s", args[0], strings.Join(args[1:], " "))
			case dash > 1:
				return usageerror.Misuse(cmd, "husk exec takes only one POD, but got %q too", args[1])
			case len(args) == 1:
				return usageerror.Misuse(cmd, "husk exec needs a program: husk exec %s -- sh", args[0])
			}
			return nil
		},
		ValidArgsFunction: a.completePod,
	}
	f := cmd.Flags()
	f.BoolVarP(&start.Stdin, "stdin", "i", false, "pass standard input to the program")
	f.BoolVarP(&start.Tty, "tty", "t", false, "run the program on a terminal")
	a.addContainer(cmd, &start.Container)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if start.Tty && start.Stdin && !terminal.Is(a.in) {
			return usageerror.Misuse(cmd, "exec -t needs a terminal on standard input: leave out -t")
		}
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		start.Name, start.Args = args[0], args[1:]
		return exited(a.streams().Run(ctx, c.Exec, start))
	})
	return cmd
}

// streams returns the streams that a program in a container is connected to.
func (a *app) streams() session.Streams { return session.Streams{In: a.in, Out: a.out, Errs: a.errs} }

// exited returns the error that makes husk end with the program's exit code.
func exited(code int, err error) error {
	switch {
	case err != nil:
		return exit{exitSession, err}
	case code != 0:
		return exit{code: code}
	}
	return nil
}
