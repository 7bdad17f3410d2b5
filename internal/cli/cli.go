// Package cli is the command line of husk: it sends requests to huskd over its socket and prints
// the answers. Each command is in the file of its name; the files of a group of commands begin with
// the name of the group.
//
// It keeps no state and never acts on the host itself, except for the terminal and the commands
// husk net and husk bench.
package cli

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/copycmd"
	"github.com/huskd/husk/internal/cli/debugcmd"
	"github.com/huskd/husk/internal/cli/generatecmd"
	"github.com/huskd/husk/internal/cli/help"
	"github.com/huskd/husk/internal/cli/imagecmd"
	"github.com/huskd/husk/internal/cli/lifecyclecmd"
	"github.com/huskd/husk/internal/cli/systemcmd"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/cli/volumecmd"
	"github.com/huskd/husk/internal/cli/workloadcmd"
	"github.com/huskd/husk/internal/version"
)

// app is the state that the commands share.
type app struct {
	in, out, errs *os.File
	socket        *pflag.Flag
	// cleansUp is set by a command that cleans up before it ends.
	cleansUp atomic.Bool
}

// socketVariable is the environment variable that replaces the default of --socket.
const socketVariable = "HUSK_SOCKET"

// address returns the address of the socket that huskd listens on.
func (a *app) address() string {
	if env := os.Getenv(socketVariable); env != "" && !a.socket.Changed {
		return env
	}
	return a.socket.Value.String()
}

func (a *app) dial() (*client.Client, error) { return client.New(a.address()) }

// withClient returns the RunE of a command that sends requests to huskd.
func (a *app) withClient(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, args)
	}
}

// exitTimeout is how long a command may take to end after it was interrupted, cleanupTimeout if it
// has to clean up first.
const (
	exitTimeout    = 2 * time.Second
	cleanupTimeout = 5 * time.Minute
)

// Main runs the command line args, which exclude the program's name, and returns the exit code.
func Main(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer terminal.Restore()
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // nohup ignores SIGHUP
			signal.Notify(signals, s)
		}
	}
	a := &app{in: os.Stdin, out: os.Stdout, errs: os.Stderr}
	done := make(chan int, 1)
	go func() {
		defer terminal.Guard()
		done <- a.execute(ctx, args)
	}()
	var why interrupted
	select {
	case code := <-done:
		return code
	case s := <-signals:
		why.signal, _ = s.(syscall.Signal)
	}
	cancel(why)
	timeout := exitTimeout
	if a.cleansUp.Load() {
		timeout = cleanupTimeout
	}
	// A blocked read or write doesn't notice the cancellation. A second signal ends the wait.
	select {
	case <-done:
	case <-signals:
	case <-time.After(timeout):
	}
	return why.code()
}

// execute runs one command line, reports its failure and returns the exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	if err := foreignWord(root, args); err != nil {
		return a.report(err)
	}
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		// Flags after the first argument are completed too.
		for _, name := range []string{"exec", "run"} {
			subcommand(root, name).Flags().SetInterspersed(true)
		}
	}
	return a.report(root.ExecuteContext(ctx))
}

// each calls do for all names at once, so that grace periods overlap.
func (a *app) each(names []string, do func(string) error) error {
	failures := &errorPrinter{w: a.errs}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			defer terminal.Guard()
			failures.add(do(name))
		})
	}
	all.Wait()
	return failures.result()
}

// The groups by which the help lists the commands.
const (
	groupPods      = "pods"
	groupWorkloads = "workloads"
	groupImages    = "images"
	groupNet       = "net"
	groupHuskd     = "huskd"
)

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:     "husk",
		Short:   "Run pods on this machine through huskd.",
		Version: version.Version,
		Long: `Run pods on this machine through huskd.

A pod is named by [NAMESPACE/]NAME or by an unambiguous prefix of its ID or UID,
a workload by KIND/[NAMESPACE/]NAME, such as deployment/web. "exec", "attach",
"logs" and "port-forward" take one of its pods, preferably a ready one.

Exit codes: 0 on success, 1 on failure, 2 for an invalid command line, and 128+N
if signal N ended husk. "exec" and "attach" return the exit code of the program,
or 125 if husk or huskd failed.`,
		Example: `husk run web.yaml --wait
husk ps -a
husk exec -it web -- sh`,
		Args:              usageerror.NoSuchCommand,
		RunE:              showHelp,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.PersistentFlags().String("socket", client.DefaultSocket, "huskd's socket; overrides $"+socketVariable)
	a.socket = root.PersistentFlags().Lookup("socket")
	root.Flags().Bool("version", false, "print the version of husk")
	root.SetVersionTemplate("husk {{.Version}}\n")
	root.SetFlagErrorFunc(usageerror.BadFlag)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { _, _ = cmd.OutOrStdout().Write([]byte(help.Text(cmd))) })
	root.SetHelpCommand(newHelp())
	root.AddGroup(
		&cobra.Group{ID: groupPods, Title: "Pods:"},
		&cobra.Group{ID: groupWorkloads, Title: "Workloads:"},
		&cobra.Group{ID: groupImages, Title: "Images:"},
		&cobra.Group{ID: groupNet, Title: "Networks:"},
		&cobra.Group{ID: groupHuskd, Title: "huskd:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	volumes := volumecmd.App{Out: a.out, Errs: a.errs, WithClient: a.withClient, Each: a.each}
	add(groupPods, newRun(a), newPs(a), newDescribe(a), newEvents(a), newInspect(a), newLogs(a), newExec(a), newAttach(a), newPortForward(a), newTop(a), newWait(a), newRm(a), newDelete(a), volumecmd.Objects(volumes))
	add(groupPods, lifecyclecmd.New(lifecyclecmd.App{Out: a.out, WithClient: a.withClient, Each: a.each, CompletePods: a.completePods, AddContainer: a.addContainer})...)
	add(groupPods, copycmd.New(copycmd.App{In: a.in, Out: a.out, Errs: a.errs, WithClient: a.withClient, AddContainer: a.addContainer}))
	add(groupPods, debugcmd.New(debugcmd.App{
		In: a.in, Out: a.out, Errs: a.errs, WithClient: a.withClient, CompletePod: a.completePod, CompleteContainer: a.completeContainer,
		Logs: a.logs, Exited: exited, CleansUp: func() { a.cleansUp.Store(true) },
	}))
	add(groupPods, generatecmd.New(generatecmd.App{Out: a.out, WithClient: a.withClient, CompletePods: a.completePods}))
	add(groupWorkloads, workloadcmd.New(workloadcmd.App{Out: a.out, Errs: a.errs, WithClient: a.withClient, Each: a.each, Complete: a.complete})...)
	images := imagecmd.App{In: a.in, Out: a.out, Errs: a.errs, Dial: a.dial, WithClient: a.withClient, Each: a.each, Complete: a.complete}
	add(groupImages, imagecmd.New(images), volumecmd.New(volumes))
	add(groupImages, imagecmd.Logins(images)...)
	add(groupNet, newNet(a))
	add(groupHuskd, systemcmd.New(systemcmd.App{In: a.in, Out: a.out, Errs: a.errs, WithClient: a.withClient})...)
	add(groupHuskd, newDoctor(a), newBench(a), newShutdown(a), newVersion(a))
	root.AddCommand(newCompletion())
	return root
}
