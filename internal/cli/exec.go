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
		Use:                   "exec [-i] [-t] POD [-c NAME] [--] CMD [ARG...]",
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
			if err := splitProgram(cmd, start, args); err != nil {
				return err
			}
			switch {
			case start.Name == "":
				return usageerror.Misuse(cmd, "husk exec needs the name of a POD, then the program")
			case len(start.Args) == 0:
				return usageerror.Misuse(cmd, "husk exec needs a program: husk exec %s -- sh", start.Name)
			}
			return nil
		},
		ValidArgsFunction: a.completePod,
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&start.Stdin, "stdin", "i", false, "pass standard input to the program")
	f.BoolVarP(&start.Tty, "tty", "t", false, "run the program on a terminal")
	a.addContainer(cmd, &start.Container)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if start.Tty && start.Stdin && !terminal.Is(a.in) {
			return usageerror.Misuse(cmd, "exec -t needs a terminal on standard input: leave out -t")
		}
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		return exited(a.streams().Run(ctx, c.Exec, start))
	})
	return cmd
}

// splitProgram finds the pod and the program in the arguments of husk exec. Flags of husk may
// follow the pod, as with kubectl; the first other word begins the program, as with docker.
func splitProgram(cmd *cobra.Command, start *huskv1.SessionStart, args []string) error {
	start.Name, start.Args = "", nil
	if len(args) == 0 || cmd.ArgsLenAtDash() == 0 {
		return nil
	}
	start.Name, args = args[0], args[1:]
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if err := cmd.Flags().Parse(args); err != nil {
			return usageerror.BadFlag(cmd, err)
		}
		args = cmd.Flags().Args()
	}
	start.Args = args
	return nil
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
