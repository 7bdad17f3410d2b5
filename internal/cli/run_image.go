package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/session"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// foreground starts the pod of an image, shows its program until it ends, and returns its exit
// code. An interrupt stops the pod.
func (r *runCommand) foreground(ctx context.Context, c *client.Client, req *huskv1.RunRequest) error {
	if r.pod.TTY && r.pod.Stdin && !terminal.Is(r.app.in) {
		return usageerror.New("-t needs a terminal on standard input: leave out -t")
	}
	r.app.cleansUp.Store(true)
	name, err := r.started(ctx, c, req)
	if err == nil {
		err = r.follow(ctx, c, name)
	}
	if name == "" || errors.Is(err, session.ErrDetached) {
		if name != "" {
			_, _ = fmt.Fprintf(r.app.errs, "\ndetached: husk attach %s reattaches\n", name)
			err = nil
		}
		return err
	}
	// What follows must happen after an interrupt too.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	interrupted := ctx.Err() != nil
	if err == nil && !interrupted && !r.attaches() {
		err = r.exitCode(after, c, name)
	}
	switch {
	case r.remove:
		_, gone := c.Remove(after, &huskv1.RemoveRequest{Name: name, Force: true})
		return errors.Join(err, gone)
	case interrupted:
		_, stopped := c.Stop(after, &huskv1.StopRequest{Name: name})
		return errors.Join(err, stopped)
	}
	return err
}

// started starts the pod and returns its name when its program runs or has ended. The name is empty
// if the pod was not admitted.
func (r *runCommand) started(ctx context.Context, c *client.Client, req *huskv1.RunRequest) (name string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Run(ctx, req)
	if err != nil {
		return "", err
	}
	var stages render.Stages
	last := ""
	for {
		ev, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return name, nil
		case err != nil:
			return name, err
		case ev.Kind != "" || ev.Note != "":
			continue // a claim
		}
		name = ev.Namespace + "/" + ev.Name
		switch {
		case ev.Ready || ev.Settled || ev.Phase == "Running":
			return name, nil
		case ev.Progress != nil:
			if line := stages.Next(ev.Progress); line != "" {
				_, _ = fmt.Fprintln(r.app.errs, line)
			}
		case ev.Message != last && ev.Message != "starting" && ev.Message != "admitted":
			last = ev.Message
			_, _ = fmt.Fprintln(r.app.errs, render.OneLine(ev.Message))
		}
	}
}

// follow shows what the program prints, and with -i or -t connects to it.
func (r *runCommand) follow(ctx context.Context, c *client.Client, name string) error {
	if !r.attaches() {
		return r.app.logs(ctx, c, &huskv1.LogsRequest{Name: name, Follow: true, Tail: -1})
	}
	start := &huskv1.SessionStart{Name: name, Stdin: r.pod.Stdin, Tty: r.pod.TTY}
	code, err := r.app.streams().Run(ctx, c.Attach, start)
	if err == nil {
		return exited(code, nil)
	}
	if errors.Is(err, session.ErrDetached) || ctx.Err() != nil {
		return err
	}
	// The program may have ended before.
	if p, found := r.find(ctx, c, name); found && p.Phase != "Running" {
		return errors.Join(r.app.logs(ctx, c, &huskv1.LogsRequest{Name: name, Tail: -1}), r.exitCode(ctx, c, name))
	}
	return exit{exitSession, err}
}

// attaches reports whether husk connects to the program, rather than to its log.
func (r *runCommand) attaches() bool { return r.pod.Stdin || r.pod.TTY }

func (r *runCommand) find(ctx context.Context, c *client.Client, name string) (*huskv1.Pod, bool) {
	pods := listPods(ctx, c)
	i := slices.IndexFunc(pods, func(p *huskv1.Pod) bool { return p.Namespace+"/"+p.Name == name })
	if i < 0 {
		return nil, false
	}
	return pods[i], true
}

// endTimeout is how long the status of a program that has ended may take to arrive.
const endTimeout = 10 * time.Second

// exitCode returns the error that makes husk end with the exit code of the pod's program.
func (r *runCommand) exitCode(ctx context.Context, c *client.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		p, found := r.find(ctx, c, name)
		if !found || p.Phase == "Stopped" {
			return nil
		}
		if len(p.Containers) > 0 && p.Phase != "Running" && p.Phase != "Pending" {
			last := p.Containers[len(p.Containers)-1]
			if last.ExitCode != 0 {
				if last.Message != "" {
					_, _ = fmt.Fprintf(r.app.errs, "husk: %s\n", render.OneLine(last.Message))
				}
				return exit{code: int(last.ExitCode)}
			}
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil // the pod is restarted
		}
	}
}
