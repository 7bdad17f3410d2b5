// Package bench benchmarks container runtimes: any that serve CRI, and the agent of huskd. In every
// workload the endpoints take turns, so that changes of the machine's load affect them all alike.
//
// Pods and directories carry the name of their run. They are removed when the run ends for any
// reason; the next run removes those of a run that was killed.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/bench/gauge"
	"github.com/huskd/husk/internal/bench/report"
)

// Config configures a run.
type Config struct {
	Endpoints []Endpoint
	Workloads []string // names of Workloads
	Samples   int      // per operation
	Parallel  int      // created at a time
	Pods      int      // that exist during list and restart
	For       time.Duration
	Image     string
	// Serve is the command in Image that listens on port 80.
	Serve []string
	// Progress, if set, is called with each sample, possibly concurrently.
	Progress func(Step)
}

// Step is a sample or a failure.
type Step struct {
	Workload, Endpoint, Operation string
	Took                          time.Duration
	Err                           error
	Done, Total                   int // rounds of the workload; Total is 0 if it is limited by time
}

// Workload is a benchmark.
type Workload struct {
	Name, Short string
	needs       need
	run         func(context.Context, *session) error
}

// need is a set of requirements of a workload.
type need uint8

const (
	needsEndpoint need = 1 << iota
	needsImage
	needsHuskd
	needsRestart
)

// Workloads are all workloads, in the order of the help.
var Workloads = []Workload{
	{"pods", "run, stop and remove pods without containers", needsEndpoint, pods},
	{"shared", "run and remove pods whose containers share a PID namespace", needsEndpoint, sharedPods},
	{"containers", "create, start, stop and remove containers in one pod", needsEndpoint | needsImage, containers},
	{"churn", "create and remove pods with a container for the duration --for", needsEndpoint | needsImage, churn},
	{"exec", "run a program that exits at once in a container", needsEndpoint | needsImage, execs},
	{"list", "list --pods pods and their containers", needsEndpoint | needsImage, lists},
	{"restart", "restart the runtime until it serves and lists its --pods pods", needsEndpoint | needsImage | needsRestart, restarts},
	{"agent", "from a manifest to the answer of its server, by huskd's agent", needsEndpoint | needsImage | needsHuskd, manifests},
	{"net", "Husk's pod network, compared with a bare veth pair", 0, benchNetwork},
	{"ipam", "allocate and record addresses, with 0 and 20,000 leases", 0, addresses},
}

// Find returns the workload with that name.
func Find(name string) (Workload, bool) {
	i := slices.IndexFunc(Workloads, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		return Workload{}, false
	}
	return Workloads[i], true
}

// NeedsEndpoint reports whether the workload uses a runtime.
func (w Workload) NeedsEndpoint() bool { return w.needs&needsEndpoint != 0 }

// session is a run in progress.
type session struct {
	Config
	run       string
	dir       string
	endpoints []*endpoint // of the current workload
	results   []report.Result
}

// Run runs the workloads, then removes everything that it created. Failed operations are counted
// and don't fail the run. If ctx is canceled, the error is its cause.
func Run(ctx context.Context, cfg Config) (out report.Report, err error) {
	s := &session{Config: cfg, run: newRun()}
	if s.dir, err = makeDir(s.run); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, removeDir(s.dir)) }()
	out = report.Report{Format: report.Format, Began: time.Now(), Machine: gauge.Machine()}
	out.Machine.LoadBefore = gauge.Load()
	all, err := s.connect(ctx)
	defer func() {
		for _, e := range all {
			e.close()
		}
	}()
	if err != nil {
		return out, err
	}
	for _, e := range all {
		out.Endpoints = append(out.Endpoints, report.Endpoint{Name: e.Name, Socket: e.Socket, Runtime: e.description})
		if err := e.cleanUp(ctx, false); err != nil {
			return out, err
		}
	}
	for _, name := range cfg.Workloads {
		if err = s.work(ctx, name, all); err != nil {
			break
		}
	}
	out.Results = s.results
	out.Seconds, out.Machine.LoadAfter = time.Since(out.Began).Seconds(), gauge.Load()
	return out, err
}

// connect connects to all endpoints and gives them unique names.
func (s *session) connect(ctx context.Context) (all []*endpoint, err error) {
	used := map[string]int{}
	for _, to := range s.Endpoints {
		e, err := connect(ctx, to, s.run, s.dir)
		if err != nil {
			return all, err
		}
		all = append(all, e)
		if used[e.Name]++; used[e.Name] > 1 {
			e.Name = fmt.Sprintf("%s-%d", e.Name, used[e.Name])
		}
	}
	return all, nil
}

// work runs one workload on the endpoints that meet its needs, then removes everything that it
// created.
func (s *session) work(ctx context.Context, name string, all []*endpoint) (err error) {
	w, ok := Find(name)
	if !ok {
		return fmt.Errorf("unknown workload %q", name)
	}
	s.endpoints = nil
	for _, e := range all {
		if w.needs&needsHuskd != 0 && e.husk == nil || w.needs&needsRestart != 0 && len(e.Restart) == 0 {
			continue
		}
		if w.needs&needsImage != 0 {
			if err := e.ensureImage(ctx, s.Image); err != nil {
				return fmt.Errorf("%s: %s: %w", name, e.Name, err)
			}
		}
		s.endpoints = append(s.endpoints, e)
	}
	switch {
	case w.needs&needsHuskd != 0 && len(s.endpoints) == 0:
		return fmt.Errorf("workload %s needs an endpoint of huskd", name)
	case w.needs&needsRestart != 0 && len(s.endpoints) == 0:
		return fmt.Errorf("workload %s needs a --restart command", name)
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		for _, e := range s.endpoints {
			err = errors.Join(err, e.cleanUp(ctx, true))
		}
	}()
	if err := w.run(ctx, s); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// maxFailures is the number of failures after which an endpoint is left out for the rest of a
// workload.
const maxFailures = 10

// prepare calls do for every endpoint at the start of a workload and returns those that succeeded.
// The recorders of the others say why they failed.
func (s *session) prepare(ctx context.Context, all []*recorder, do func(*recorder) error) []*recorder {
	var ready []*recorder
	for _, r := range all {
		if ctx.Err() != nil {
			break
		}
		if err := do(r); err != nil {
			r.fail("prepare", err)
			continue
		}
		ready = append(ready, r)
	}
	return ready
}

// interleave runs n rounds, in each of which every endpoint takes its turn.
func (s *session) interleave(ctx context.Context, all []*recorder, n int, turn func(r *recorder, i int) error) {
	for i := range n {
		for _, j := range report.Turns(i, len(all)) {
			if ctx.Err() != nil {
				return
			}
			r := all[j]
			if r.errorCount() >= maxFailures {
				continue
			}
			r.setRound(i+1, n)
			_ = turn(r, i) // failures are in the recorder
		}
	}
}

// workloadTitle returns the name of a workload with its parameters.
func workloadTitle(name string, with ...string) string {
	return strings.Join(append([]string{name}, with...), ", ")
}
