// Package benchcmd has the command husk bench, which measures container runtimes
// by their sockets and, for some workloads, in namespaces of its own.
package benchcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/bench"
	"github.com/huskd/husk/internal/bench/report"
	"github.com/huskd/husk/internal/cli/render"
)

// App is what the command needs of the command line that it is part of.
type App struct {
	Out, Errs *os.File
	// Socket is huskd's.
	Socket func() string
	// Misuse says what is wrong with the command line of cmd.
	Misuse func(cmd *cobra.Command, format string, args ...any) error
	// Shows gives cmd the flag -o and returns what shows a value by it.
	Shows func(cmd *cobra.Command) func(v any, table func() *render.Table) error
	// Clears says that a signal has to wait until the command has cleared away.
	Clears func()
	// For adds a flag that takes a time.
	For func(flags *pflag.FlagSet, name string, value time.Duration, usage string) *time.Duration
}

// command is husk bench with its flags.
type command struct {
	App
	cfg       bench.Config
	wait      *time.Duration
	endpoints []string
	restarts  []string
	serve     string
	compare   string
	page      string
	show      func(v any, table func() *render.Table) error
}

// The defaults of the flags.
const (
	defaultImage = "docker.io/library/busybox:latest"
	defaultServe = "httpd -f -p 80"
)

// New returns husk bench.
func New(app App) *cobra.Command { return (&command{App: app}).command() }

func (c *command) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench WORKLOAD...",
		Short: "Measure huskd, or any CRI runtime beside it.",
		Long: `Measure huskd, or any CRI runtime beside it.

` + list() + `
Several endpoints take turns, so that what changes on the machine meanwhile
changes for all. Times are in milliseconds; RATIO is to the first endpoint.

All that a run makes is in the namespace husk-bench, and is removed when it ends
or is interrupted; what a run left that was killed, the next one removes.`,
		Example: `husk bench pods
husk bench pods -n 100 --parallel 10 --endpoint unix:///run/containerd/containerd.sock --endpoint unix:///run/husk/husk.sock
husk bench containers exec --image localhost/web:1 --compare before.json --html now.html
husk bench restart --pods 50 --restart /usr/local/sbin/restart-huskd`,
		Args:              c.check,
		ValidArgsFunction: cobra.FixedCompletions(names(), cobra.ShellCompDirectiveNoFileComp),
		RunE:              func(cmd *cobra.Command, args []string) error { return c.run(cmd, args) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&c.endpoints, "endpoint", nil, "`[NAME=]SOCKET` of a CRI runtime, repeatable (default: huskd's)")
	f.StringArrayVar(&c.restarts, "restart", nil, "`COMMAND` that restarts the endpoint, repeatable in their order; not run by a shell")
	f.IntVarP(&c.cfg.Samples, "samples", "n", 20, "how often each operation is measured; with --parallel how many pods there are")
	f.IntVar(&c.cfg.Parallel, "parallel", 1, "how many pods are made at a time by pods, churn and agent")
	f.IntVar(&c.cfg.Pods, "pods", 100, "how many pods there are during list and restart")
	c.wait = c.For(f, "for", 30*time.Second, "how long churn goes on for each endpoint")
	f.StringVar(&c.cfg.Image, "image", defaultImage, "`REF` of the image of containers, pulled if it isn't there; it has sleep and true")
	f.StringVar(&c.serve, "serve", defaultServe, "`COMMAND` of the image that listens at port 80, for agent")
	f.StringVar(&c.compare, "compare", "", "`FILE` of an earlier run's -o json to compare with")
	f.StringVar(&c.page, "html", "", "`FILE` to write a page with plots to")
	c.show = c.Shows(cmd)
	return cmd
}

func names() []string {
	var all []string
	for _, w := range bench.Workloads {
		all = append(all, w.Name)
	}
	return all
}

// list tells what there is to measure.
func list() string {
	var b strings.Builder
	for _, w := range bench.Workloads {
		fmt.Fprintf(&b, "    %-11s %s\n", w.Name, w.Short)
	}
	return b.String()
}

// check is the Args of the command.
func (c *command) check(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Misuse(cmd, "husk bench needs a WORKLOAD: %s", strings.Join(names(), ", "))
	}
	for _, name := range args {
		if _, ok := bench.Find(name); !ok {
			return c.Misuse(cmd, "no workload %q: it is one of %s", name, strings.Join(names(), ", "))
		}
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"samples", c.cfg.Samples}, {"parallel", c.cfg.Parallel}, {"pods", c.cfg.Pods}} {
		if n.value < 1 {
			return c.Misuse(cmd, "--%s is at least 1", n.flag)
		}
	}
	if *c.wait <= 0 {
		return c.Misuse(cmd, "--for is more than nothing")
	}
	if len(strings.Fields(c.serve)) == 0 {
		return c.Misuse(cmd, "--serve is empty: name a program of the image")
	}
	if len(c.restarts) > max(1, len(c.endpoints)) {
		return c.Misuse(cmd, "there are more --restart than --endpoint")
	}
	return nil
}

// config completes the configuration from flags and arguments.
func (c *command) config(cmd *cobra.Command, args []string) (bench.Config, error) {
	cfg := c.cfg
	cfg.Workloads, cfg.For, cfg.Serve = args, *c.wait, strings.Fields(c.serve)
	asks := false
	for _, name := range args {
		w, _ := bench.Find(name)
		asks = asks || w.NeedsEndpoint()
	}
	if !asks {
		return cfg, nil
	}
	given := c.endpoints
	if len(given) == 0 {
		given = []string{c.Socket()}
	}
	for _, given := range given {
		e := bench.Endpoint{Socket: given}
		if name, socket, found := strings.Cut(given, "="); found && !strings.Contains(name, "/") {
			e.Name, e.Socket = name, socket
		}
		e.Socket = strings.TrimPrefix(strings.TrimPrefix(e.Socket, "unix:"), "//")
		if !strings.HasPrefix(e.Socket, "/") {
			return cfg, c.Misuse(cmd, "--endpoint %q is no Unix socket, as unix:///run/containerd/containerd.sock is", given)
		}
		cfg.Endpoints = append(cfg.Endpoints, e)
	}
	for i, command := range c.restarts {
		cfg.Endpoints[i].Restart = strings.Fields(command)
	}
	return cfg, nil
}

func (c *command) run(cmd *cobra.Command, args []string) error {
	if os.Geteuid() != 0 {
		return errors.New("runtimes and namespaces are root's: try sudo husk")
	}
	cfg, err := c.config(cmd, args)
	if err != nil {
		return err
	}
	before, err := c.earlier()
	if err != nil {
		return err
	}
	c.Clears()
	view := c.newView()
	cfg.Progress = view.step
	out, err := bench.Run(cmd.Context(), cfg)
	view.close()
	if err != nil {
		if cause := context.Cause(cmd.Context()); cause != nil && errors.Is(err, cause) {
			_, _ = fmt.Fprintln(c.Errs, "interrupted: what it made is removed")
		}
		return err
	}
	if c.page != "" {
		if err := os.WriteFile(c.page, []byte(report.Page(out, before)), 0o644); err != nil {
			return err
		}
	}
	if err := c.show(out, func() *render.Table { return table(out, before) }); err != nil {
		return err
	}
	return failures(out)
}

// earlier reads the report to compare with; nil if there is none.
func (c *command) earlier() (*report.Report, error) {
	if c.compare == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.compare)
	if err != nil {
		return nil, err
	}
	r := &report.Report{}
	if err := json.Unmarshal(data, r); err != nil || r.Format != report.Format {
		return nil, fmt.Errorf("%s is no report of husk bench: make one with -o json", c.compare)
	}
	return r, nil
}

func table(r report.Report, before *report.Report) *render.Table {
	header := report.Header
	if before != nil {
		header = append(header[:len(header):len(header)], report.Against...)
	}
	t := render.NewTable(header...)
	for _, row := range report.Rows(r, before) {
		cells := make([]any, len(row))
		for i, text := range row {
			cells[i] = text
		}
		t.Row(cells...)
	}
	return t
}

// failures are the operations that failed, a line for each kind.
func failures(r report.Report) error {
	if r.Errors() == 0 {
		return nil
	}
	var errs []error
	for _, res := range r.Results {
		for _, text := range res.Failures {
			errs = append(errs, fmt.Errorf("%s: %s: %s", res.Workload, res.Endpoint, text))
		}
	}
	return errors.Join(append(errs, fmt.Errorf("%d operations failed", r.Errors()))...)
}
