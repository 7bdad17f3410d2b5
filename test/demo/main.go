// Command demo shows the life of a pod on this machine: it starts huskd on its own directories,
// runs examples/web.yaml and inspects the pod as a person would. At the end it removes everything,
// and counts that nothing is left.
//
// Run it with make demo from the top of the repository. With -keep, huskd and the pod stay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	keep := flag.Bool("keep", false, "leave huskd and the pod running")
	flag.Parse()
	// SIGPIPE too: the reader of the output may exit, as head does.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	if err := run(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, keep bool) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("namespaces and mounts need root: run this as root")
	}
	d, err := newDemo()
	if err != nil {
		return err
	}
	before := d.count()
	var running tally
	defer func() {
		if keep && err == nil {
			d.printNextSteps()
			return
		}
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		err = errors.Join(err, d.end(before, running))
	}()
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.load(ctx); err != nil {
		return err
	}
	if err := d.run(ctx); err != nil {
		return err
	}
	running = d.count()
	return d.look(ctx)
}

// newDemo creates the directory that holds everything of the demo.
func newDemo() (*demo, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(manifest); err != nil {
		return nil, fmt.Errorf("%w: run make demo from the top of the repository", err)
	}
	subnets, err := freeSubnets()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "husk-demo-")
	if err != nil {
		return nil, err
	}
	return &demo{dir: dir, bin: filepath.Dir(self), subnets: subnets}, nil
}
