// Package bench measures container runtimes: any that serves CRI, and huskd by
// its own manifests too. Endpoints take turns in every workload, so that what
// changes on the machine meanwhile changes for all.
//
// What a run makes has its name. It is removed when the run ends, in whatever
// way; what a run left that was killed, the next one removes.
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

// Config of a run.
type Config struct {
	Endpoints []Endpoint
	Workloads []string // of Workloads
	Samples   int      // of each operation
	Parallel  int      // pods at a time
	Pods      int      // that there are during list and restart
	For       time.Duration
	Image     string
	// Serve is what a container of Image runs to listen at port 80.
	Serve []string
	// Progress, if any, is told of each sample. It may be called by several at once.
	Progress func(Step)
}

// Step is a sample that was taken, or a failure.
type Step struct {
	Workload, Endpoint, Operation string
	Took                          time.Duration
	Err                           error
	Done, Total                   int // rounds of the workload; Total is 0 if it goes by time
}

// Workload is something that can be measured.
type Workload struct {
	Name, Short string
	needs       need
	run         func(context.Context, *session) error
}

// need is what a workload can't do without.
type need uint8

const (
	anEndpoint need = 1 << iota
	anImage
	aHuskd
	aRestart
)

// Workloads are all there are, as they are listed.
var Workloads = []Workload{
	{"pods", "run, stop and remove pods without containers", anEndpoint, pods},
	{"containers", "create, start, stop and remove containers in one pod", anEndpoint | anImage, containers},
	{"churn", "make and remove pods with a container, for the time --for", anEndpoint | anImage, churn},
	{"exec", "run a program in a container that ends at once", anEndpoint | anImage, execs},
	{"list", "list pods and containers while there are --pods of them", anEndpoint | anImage, lists},
	{"restart", "restart the runtime, until it serves and knows its --pods pods", anEndpoint | anImage | aRestart, restarts},
	{"agent", "from a manifest to its server's answer, by huskd's own agent", anEndpoint | anImage | aHuskd, manifests},
	{"net", "Husk's pod network by itself, and beside a bare veth pair", 0, network},
	{"ipam", "allocate and record addresses, with none and with 20,000 leased", 0, addresses},
}

// Find returns the workload of that name.
func Find(name string) (Workload, bool) {
	i := slices.IndexFunc(Workloads, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		return Workload{}, false
	}
	return Workloads[i], true
}

// NeedsEndpoint says whether the workload asks a runtime.
func (w Workload) NeedsEndpoint() bool { return w.needs&anEndpoint != 0 }

// session is a run under way.
type session struct {
	Config
	run       string
	dir       string
	endpoints []*endpoint // that take part in the workload under way
	results   []report.Result
}

// Run measures, and removes what it made however it ends. Operations that fail
// are counted, and are no failure of the run. When ctx ends, so does the run,
// and its error has the cause.
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
		if err := e.sweep(ctx, false); err != nil {
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

// connect connects to all endpoints and gives each a name of its own.
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

// work does one workload over those of the endpoints that can do it, and
// removes all that it made.
func (s *session) work(ctx context.Context, name string, all []*endpoint) (err error) {
	w, ok := Find(name)
	if !ok {
		return fmt.Errorf("no workload %q", name)
	}
	s.endpoints = nil
	for _, e := range all {
		if w.needs&aHuskd != 0 && e.husk == nil || w.needs&aRestart != 0 && len(e.Restart) == 0 {
			continue
		}
		if w.needs&anImage != 0 {
			if err := e.ensureImage(ctx, s.Image); err != nil {
				return fmt.Errorf("%s: %s: %w", name, e.Name, err)
			}
		}
		s.endpoints = append(s.endpoints, e)
	}
	switch {
	case w.needs&aHuskd != 0 && len(s.endpoints) == 0:
		return fmt.Errorf("workload %s: no endpoint is a huskd", name)
	case w.needs&aRestart != 0 && len(s.endpoints) == 0:
		return fmt.Errorf("workload %s: no endpoint has a --restart command", name)
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		for _, e := range s.endpoints {
			err = errors.Join(err, e.sweep(ctx, true))
		}
	}()
	if err := w.run(ctx, s); err != nil {
		return err
	}
	return stopped(ctx)
}

// stopped tells why the run is to end, if it is.
func stopped(ctx context.Context) error { return context.Cause(ctx) }

// failuresMax is after how many failures an endpoint takes no more part in a
// workload.
const failuresMax = 10

// each does something for every endpoint at the beginning of a workload. One
// that can't is left out, and its record says why.
func (s *session) each(ctx context.Context, all []*record, do func(*record) error) []*record {
	var able []*record
	for _, r := range all {
		if ctx.Err() != nil {
			break
		}
		if err := do(r); err != nil {
			r.fail("prepare", err)
			continue
		}
		able = append(able, r)
	}
	return able
}

// turns takes n rounds, in each of which every endpoint has its turn.
func (s *session) turns(ctx context.Context, all []*record, n int, turn func(r *record, i int) error) {
	for i := range n {
		for _, j := range report.Turns(i, len(all)) {
			if ctx.Err() != nil {
				return
			}
			r := all[j]
			if r.failed() >= failuresMax {
				continue
			}
			r.at(i+1, n)
			_ = turn(r, i) // a failure is in the record
		}
	}
}

// title names a workload with what it was done with.
func title(name string, with ...string) string {
	return strings.Join(append([]string{name}, with...), ", ")
}
