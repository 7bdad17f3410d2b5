// Package cli is the husk command line: it asks huskd over its socket and
// shows the answers. Each command is in the file of its name; what a command
// group has is in files that begin with the group's.
//
// It holds nothing and never touches the host itself, except for the terminal
// and the commands husk net and husk bench.
package cli

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/help"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// app is what the commands share.
type app struct {
	in, out, errs *os.File
	socket        *pflag.Flag
	// clears is set by a command that clears away before it leaves.
	clears atomic.Bool
}

// socketVariable replaces the default of --socket.
const socketVariable = "HUSK_SOCKET"

// address is where huskd listens.
func (a *app) address() string {
	if env := os.Getenv(socketVariable); env != "" && !a.socket.Changed {
		return env
	}
	return a.socket.Value.String()
}

func (a *app) dial() (*client.Client, error) { return client.New(a.address()) }

// asks makes the RunE of a command that asks huskd.
func (a *app) asks(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, args)
	}
}

// leaveTime is how long a command that was interrupted may take to leave,
// clearTime if it has to clear away first.
const (
	leaveTime = 2 * time.Second
	clearTime = 5 * time.Minute
)

// Main runs the command line args, the program's name not among them, and
// returns its exit code.
func Main(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// Whatever happens, the terminal is handed back as it was.
	defer terminal.Restore()
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // as nohup asks
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
	patience := leaveTime
	if a.clears.Load() {
		patience = clearTime
	}
	// A read or a write that hangs doesn't notice; a second signal doesn't wait.
	select {
	case <-done:
	case <-signals:
	case <-time.After(patience):
	}
	return why.code()
}

// execute runs one command line and reports its failure.
func (a *app) execute(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	return a.report(root.ExecuteContext(ctx))
}

// The groups under which help lists the commands.
const (
	groupPods   = "pods"
	groupImages = "images"
	groupNet    = "net"
	groupHuskd  = "huskd"
)

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "husk",
		Short: "Run pods on this machine through huskd.",
		Long: `Run pods on this machine through huskd.

A pod is named by [NAMESPACE/]NAME or by an unambiguous prefix of its ID or UID.

Exit codes: 0 is success, 1 a failure, 2 a command line that makes no sense,
128+N an end by signal N. "exec" and "attach" return the program's own code,
or 125 if it's husk or huskd that failed.`,
		Example: `husk run web.yaml --wait
husk ps -a
husk exec -it web -- sh`,
		Args:              usageerror.NoSuchCommand,
		RunE:              showHelp,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.PersistentFlags().String("socket", client.DefaultSocket, "where huskd listens; also $"+socketVariable)
	a.socket = root.PersistentFlags().Lookup("socket")
	root.SetFlagErrorFunc(usageerror.BadFlag)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { _, _ = cmd.OutOrStdout().Write([]byte(help.Help(cmd))) })
	root.SetHelpCommand(newHelp())
	root.AddGroup(
		&cobra.Group{ID: groupPods, Title: "Pods:"},
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
	add(groupPods, newRun(a), newPs(a), newDescribe(a), newEvents(a), newInspect(a), newLogs(a), newExec(a), newAttach(a), newPortForward(a), newTop(a), newStop(a), newRm(a))
	add(groupImages, newImage(a))
	add(groupNet, newNet(a))
	add(groupHuskd, newDoctor(a), newBench(a), newShutdown(a), newVersion(a))
	root.AddCommand(newCompletion())
	return root
}
