// Package benchcmd implements husk bench, which measures container runtimes through their sockets
// and, for some workloads, in namespaces of its own.
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

	"github.com/huskd/husk/internal/bench"
	"github.com/huskd/husk/internal/bench/report"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is the command line that the command is part of.
type App struct {
	Out, Errs *os.File
	// Socket returns the address of huskd's socket.
	Socket func() string
	// CleansUp tells the command line that the command cleans up before it ends, which takes time.
	CleansUp func()
}

// command is husk bench with the values of its flags.
type command struct {
	App
	cfg       bench.Config
	churn     flags.Duration
	endpoints []string
	restarts  []string
	serve     string
	compare   string
	page      string
	output    *flags.Output
}

// Defaults of the flags.
const (
	defaultImage = "docker.io/library/busybox:latest"
	defaultServe = "httpd -f -p 80"
)

// New returns the command husk bench.
func New(app App) *cobra.Command { return (&command{App: app}).command() }

func (c *command) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench WORKLOAD...",
		Short: "Benchmark huskd and other CRI runtimes.",
		Long: `Benchmark huskd and other CRI runtimes.

` + list() + `
Several endpoints take turns, so that changes of the machine's load affect them
all alike. Times are in milliseconds; RATIO is relative to the first endpoint.

All pods of a run are in the namespace husk-bench. They are removed when the run
ends or is interrupted; the next run removes those of a run that was killed.`,
		Example: `husk bench pods
husk bench pods -n 100 --parallel 10 --endpoint unix:///run/containerd/containerd.sock --endpoint unix:///run/husk/husk.sock
husk bench containers exec --image localhost/web:1 --compare before.json --html now.html
husk bench restart --pods 50 --restart /usr/local/sbin/restart-huskd`,
		Args:              c.check,
		ValidArgsFunction: cobra.FixedCompletions(names(), cobra.ShellCompDirectiveNoFileComp),
		RunE:              func(cmd *cobra.Command, args []string) error { return c.run(cmd, args) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&c.endpoints, "endpoint", nil, "`[NAME=]SOCKET` of a CRI runtime; repeatable (default: huskd's)")
	f.StringArrayVar(&c.restarts, "restart", nil, "`COMMAND` that restarts an endpoint, one for each in order; not run by a shell")
	f.IntVarP(&c.cfg.Samples, "samples", "n", 20, "samples of each operation; with --parallel, the number of pods")
	f.IntVar(&c.cfg.Parallel, "parallel", 1, "number of pods that pods, churn and agent create at a time")
	f.IntVar(&c.cfg.Pods, "pods", 100, "number of pods that exist during list and restart")
	c.churn = flags.Duration(30 * time.Second)
	f.Var(&c.churn, "for", "how long churn runs for each endpoint")
	f.StringVar(&c.cfg.Image, "image", defaultImage, "`REF` of the containers' image, with sleep and true; pulled if missing")
	f.StringVar(&c.serve, "serve", defaultServe, "`COMMAND` in the image that listens on port 80, for agent")
	f.StringVar(&c.compare, "compare", "", "`FILE` with an earlier report, from -o json, to compare with")
	f.StringVar(&c.page, "html", "", "`FILE` to write an HTML page with plots to")
	c.output = flags.AddOutput(cmd, flags.JSON, flags.YAML)
	return cmd
}

func names() []string {
	var all []string
	for _, w := range bench.Workloads {
		all = append(all, w.Name)
	}
	return all
}

// list describes the workloads, one per line.
func list() string {
	var b strings.Builder
	for _, w := range bench.Workloads {
		fmt.Fprintf(&b, "    %-11s %s\n", w.Name, w.Short)
	}
	return b.String()
}

// check validates the arguments and flags.
func (c *command) check(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageerror.Misuse(cmd, "husk bench needs a WORKLOAD: %s", strings.Join(names(), ", "))
	}
	for _, name := range args {
		if _, ok := bench.Find(name); !ok {
			return usageerror.Misuse(cmd, "unknown workload %q: must be one of %s", name, strings.Join(names(), ", "))
		}
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"samples", c.cfg.Samples}, {"parallel", c.cfg.Parallel}, {"pods", c.cfg.Pods}} {
		if n.value < 1 {
			return usageerror.Misuse(cmd, "--%s must be at least 1", n.flag)
		}
	}
	if c.churn <= 0 {
		return usageerror.Misuse(cmd, "--for must be positive")
	}
	if len(strings.Fields(c.serve)) == 0 {
		return usageerror.Misuse(cmd, "--serve must name a program in the image")
	}
	if len(c.restarts) > max(1, len(c.endpoints)) {
		return usageerror.Misuse(cmd, "more --restart than --endpoint: give one for each endpoint at most")
	}
	return nil
}

// config returns the configuration for the flags and the named workloads.
func (c *command) config(cmd *cobra.Command, args []string) (bench.Config, error) {
	cfg := c.cfg
	cfg.Workloads, cfg.For, cfg.Serve = args, time.Duration(c.churn), strings.Fields(c.serve)
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
			return cfg, usageerror.Misuse(cmd, "--endpoint %q is not a Unix socket such as unix:///run/containerd/containerd.sock", given)
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
		return errors.New("husk bench needs root: try sudo husk")
	}
	cfg, err := c.config(cmd, args)
	if err != nil {
		return err
	}
	before, err := c.earlier()
	if err != nil {
		return err
	}
	c.CleansUp()
	view := c.newView()
	cfg.Progress = view.step
	out, err := bench.Run(cmd.Context(), cfg)
	view.close()
	if err != nil {
		if cause := context.Cause(cmd.Context()); cause != nil && errors.Is(err, cause) {
			_, _ = fmt.Fprintln(c.Errs, "interrupted: everything that was created is removed")
		}
		return err
	}
	if c.page != "" {
		if err := os.WriteFile(c.page, []byte(report.Page(out, before)), 0o644); err != nil {
			return err
		}
	}
	if err := c.output.Print(c.Out, out, func() *render.Table { return table(out, before) }); err != nil {
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
		return nil, fmt.Errorf("%s is not a report of husk bench: create one with -o json", c.compare)
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

// failures returns the different failures of all operations and their total count; nil if there are
// none.
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
