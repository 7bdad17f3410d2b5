// Package debugcmd has the command husk debug.
package debugcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/session"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is what the command needs of the command line.
type App struct {
	In, Out, Errs *os.File
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
	// CompletePod completes the name of a pod, CompleteContainer that of one of its containers.
	CompletePod, CompleteContainer cobra.CompletionFunc
	// Logs prints logs.
	Logs func(ctx context.Context, c *client.Client, requests ...*huskv1.LogsRequest) error
	// Exited returns the error that makes husk end with a program's exit code.
	Exited func(code int, err error) error
	// CleansUp says that the command has something to clean up when it is interrupted.
	CleansUp func()
}

// New returns the command.
func New(app App) *cobra.Command {
	req := &huskv1.DebugRequest{}
	cmd := &cobra.Command{
		Use:                   "debug POD --image IMAGE [-c NAME] [-i] [-t] [-- CMD [ARG...]]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a container with tools in a running pod.",
		Long: `Run a container with tools in a running pod.

The container has the pod's network, and sees the processes of one of its
containers: the files of its first process are in /proc/1/root. It needs no
shell in their images, and isn't restarted. It stays in husk describe until the
pod is removed. Exit codes: the program's own, 125 if husk or huskd failed.`,
		Example: `husk debug web --image busybox -it
husk debug web --image busybox -- ls -l /proc/1/root/etc
husk debug shop/db -c postgres --image nicolaka/netshoot -- ss -tnp`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() == 0 {
				return usageerror.Misuse(cmd, "husk debug needs the name of a POD, then --image, and the program after --")
			}
			req.Name, req.Args = args[0], args[1:]
			return nil
		},
		ValidArgsFunction: app.CompletePod,
	}
	f := cmd.Flags()
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "target" { // kubectl's name
			name = "container"
		}
		return pflag.NormalizedName(name)
	})
	f.StringVar(&req.Image, "image", "", "`IMAGE` that has the tools")
	f.StringVarP(&req.Target, "container", "c", "", "`NAME` of the container whose processes it sees, if the pod has several")
	f.BoolVarP(&req.Stdin, "stdin", "i", false, "pass standard input to the program")
	f.BoolVarP(&req.Tty, "tty", "t", false, "run the program on a terminal")
	_ = cmd.RegisterFlagCompletionFunc("container", app.CompleteContainer)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if req.Tty && req.Stdin && !terminal.Is(app.In) {
			return usageerror.Misuse(cmd, "debug -t needs a terminal on standard input: leave out -t")
		}
		return nil
	}
	cmd.RunE = app.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		app.CleansUp()
		d := &debugger{App: app, c: c, req: req}
		if err := d.start(ctx); err != nil {
			return app.Exited(0, err)
		}
		return d.show(ctx)
	})
	return cmd
}

// debugger is a container that was added to a pod.
type debugger struct {
	App
	c         *client.Client
	req       *huskv1.DebugRequest
	pod       string // namespace/name
	container string
}

func (d *debugger) say(format string, args ...any) { _, _ = fmt.Fprintf(d.Errs, format+"\n", args...) }

// start adds the container, and returns once it has started.
func (d *debugger) start(ctx context.Context) error {
	stream, err := d.c.Debug(ctx, d.req)
	if err != nil {
		return err
	}
	for {
		ev, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("huskd ended the call before the container has started: see its log")
		}
		if err != nil {
			return err
		}
		if !ev.Started {
			d.say("%s", render.OneLine(ev.Message))
			continue
		}
		d.pod, d.container = ev.Namespace+"/"+ev.Name, ev.Container
		sees := "the processes of container " + ev.Target
		if ev.Target == "" {
			sees = "only its own processes, since no other container runs"
		}
		d.say("container %s of pod %s sees %s", d.container, d.pod, sees)
		return nil
	}
}

// killTimeout bounds the end of a program whose husk was interrupted.
const killTimeout = 10 * time.Second

// show shows the program until it ends, and returns its exit code.
func (d *debugger) show(ctx context.Context) error {
	log := &huskv1.LogsRequest{Name: d.pod, Container: d.container, Follow: true, Tail: -1}
	err := error(nil)
	if d.req.Stdin || d.req.Tty {
		var code int
		start := &huskv1.SessionStart{Name: d.pod, Container: d.container, Stdin: d.req.Stdin, Tty: d.req.Tty}
		code, err = session.Streams{In: d.In, Out: d.Out, Errs: d.Errs}.Run(ctx, d.c.Attach, start)
		switch {
		case err == nil:
			return d.Exited(code, nil)
		case errors.Is(err, session.ErrDetached):
			d.say("\ndetached: husk attach %s -c %s reattaches", d.pod, d.container)
			return nil
		}
	}
	// Without an attach, the log has all output. It also does if the program ended before the attach.
	if ctx.Err() == nil && (err == nil || d.status(ctx).GetState() == "Terminated") {
		err = d.Logs(ctx, d.c, log)
	}
	if ctx.Err() != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		_, killed := d.c.Kill(after, &huskv1.KillRequest{Name: d.pod, Container: d.container, Signal: "KILL"})
		return errors.Join(err, killed)
	}
	if err != nil {
		if st := d.status(ctx); st.GetState() != "Terminated" || st.GetId() != "" { // one that never ran has no log
			return d.Exited(0, err)
		}
	}
	return d.exitCode(ctx)
}

// status returns the state of the container, or nil if it isn't known.
func (d *debugger) status(ctx context.Context) *huskv1.Container {
	answer, err := d.c.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
	if err != nil {
		return nil
	}
	for _, p := range answer.Pods {
		if p.Namespace+"/"+p.Name != d.pod {
			continue
		}
		if i := slices.IndexFunc(p.Ephemeral, func(c *huskv1.Container) bool { return c.Name == d.container }); i >= 0 {
			return p.Ephemeral[i]
		}
	}
	return nil
}

// endTimeout is how long the status of a program that has ended may take to arrive.
const endTimeout = 10 * time.Second

// exitCode returns the error that makes husk end with the program's exit code.
func (d *debugger) exitCode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		if st := d.status(ctx); st.GetState() == "Terminated" {
			if st.Message != "" {
				d.say("husk: %s", render.OneLine(st.Message))
			}
			return d.Exited(int(st.ExitCode), nil)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return d.Exited(0, fmt.Errorf("the exit code of container %s of pod %s isn't known", d.container, d.pod))
		}
	}
}
