package bench

import (
	"slices"
	"sync"
	"time"

	"github.com/huskd/husk/internal/bench/gauge"
	"github.com/huskd/husk/internal/bench/report"
)

// record is what one workload finds of one endpoint.
type record struct {
	*endpoint // nil if the workload needs none
	workload  string
	of        string // the endpoint's name, or what else is compared
	tell      func(Step)
	counters  *gauge.Counters
	uncounted error // why there are none

	mu          sync.Mutex // guards what follows
	operations  []*operation
	figures     []report.Figure
	failures    []string
	done, total int
	errors      int
}

type operation struct {
	name    string
	samples []time.Duration
	errors  int
	within  time.Duration // in which they were taken, if not one after another
}

// records begins the records of a workload, one for each endpoint. Their end
// makes results of them.
func (s *session) records(workload string) (all []*record, end func()) {
	for _, e := range s.endpoints {
		r := &record{endpoint: e, workload: workload, of: e.Name, tell: s.Progress}
		if pid, err := e.pid(); err != nil {
			r.uncounted = err
		} else {
			r.counters = gauge.Count(pid)
		}
		all = append(all, r)
	}
	return all, func() {
		for _, r := range all {
			s.results = append(s.results, r.result())
			if r.counters != nil {
				r.counters.Close()
			}
		}
	}
}

// compare begins the records of a workload without endpoints, one for each of
// the things that it compares.
func (s *session) compare(workload string, things ...string) (all []*record, end func()) {
	for _, thing := range things {
		all = append(all, &record{workload: workload, of: thing, tell: s.Progress})
	}
	return all, func() {
		for _, r := range all {
			s.results = append(s.results, r.result())
		}
	}
}

func (r *record) result() report.Result {
	out := report.Result{Workload: r.workload, Endpoint: r.of, Figures: r.figures, Failures: r.failures}
	for _, o := range r.operations {
		out.Operations = append(out.Operations, report.Summarise(o.name, o.samples, o.errors, o.within))
	}
	return out
}

// at notes how far the workload is.
func (r *record) at(done, total int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done, r.total = done, total
}

func (r *record) failed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errors
}

// time times do as an operation of that name.
func (r *record) time(name string, do func() error) error {
	began := time.Now()
	err := do()
	r.sample(name, time.Since(began), err)
	return err
}

// sample adds a sample to an operation, or its failure.
func (r *record) sample(name string, took time.Duration, err error) {
	if err != nil {
		r.fail(name, err)
		return
	}
	r.mu.Lock()
	o := r.operation(name)
	o.samples = append(o.samples, took)
	step := r.step(name)
	r.mu.Unlock()
	if r.tell != nil {
		step.Took = took
		r.tell(step)
	}
}

// failuresShown is how many different failures a record tells of.
const failuresShown = 5

func (r *record) fail(name string, err error) {
	r.mu.Lock()
	r.errors++
	r.operation(name).errors++
	if text := name + ": " + err.Error(); len(r.failures) < failuresShown && !slices.Contains(r.failures, text) {
		r.failures = append(r.failures, text)
	}
	step := r.step(name)
	r.mu.Unlock()
	if r.tell != nil {
		step.Err = err
		r.tell(step)
	}
}

func (r *record) step(name string) Step {
	return Step{Workload: r.workload, Endpoint: r.of, Operation: name, Done: r.done, Total: r.total}
}

// operation returns the one of that name, which mu guards.
func (r *record) operation(name string) *operation {
	i := slices.IndexFunc(r.operations, func(o *operation) bool { return o.name == name })
	if i < 0 {
		i = len(r.operations)
		r.operations = append(r.operations, &operation{name: name})
	}
	return r.operations[i]
}

// together says that the samples of operations so far were taken at the same
// time, which was that long in all.
func (r *record) together(took time.Duration, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.operation(name).within += took
	}
}

// figure adds a number, or why there is none.
func (r *record) figure(name, unit string, value float64, err error) {
	f := report.Figure{Name: name, Unit: unit, Value: value}
	if err != nil {
		f.Value, f.Absent = 0, err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.figures, func(o report.Figure) bool { return o.Name == name })
	if i < 0 {
		r.figures = append(r.figures, f)
		return
	}
	r.figures[i] = f
}

// The figures, by their names.
const (
	DaemonMemory  = "daemon, PSS"
	PodMemory     = "monitors and pause of a pod, PSS"
	MonitorMemory = "monitors of a container, PSS"
	CPUTime       = "processor time for each"
	Programs      = "programs run for each"
	Flushes       = "disk flushes for each"
)

// spent reads what the workload took of the machine for each of n things done.
func (r *record) spent(n int) {
	if n == 0 {
		return
	}
	for _, f := range []struct {
		name, unit string
		kind       gauge.Kind
		per        float64
	}{{CPUTime, "ms", gauge.CPU, 1e6}, {Programs, "", gauge.Execs, 1}, {Flushes, "", gauge.Syncs, 1}} {
		err := r.uncounted
		var sum int64
		if err == nil {
			sum, err = r.counters.Read(f.kind)
		}
		r.figure(f.name, f.unit, float64(sum)/f.per/float64(n), err)
	}
}

// megabyte of memory, as the table counts them.
const megabyte = 1e6

// resident reads what the daemon, and what else there is for pods without
// containers, has in memory.
func (r *record) resident(pods []*pod) {
	r.residentDaemon()
	var ids []string
	for _, p := range pods {
		ids = append(ids, p.id)
	}
	monitors, members, err := gauge.Of(ids)
	if len(ids) == 0 || err != nil {
		return
	}
	size, err := gauge.PSS(append(monitors, members...)...)
	r.figure(PodMemory, "MB", float64(size)/megabyte/float64(len(ids)), err)
}

func (r *record) residentDaemon() {
	pid, err := r.pid()
	var size int64
	if err == nil {
		size, err = gauge.PSS(pid)
	}
	r.figure(DaemonMemory, "MB", float64(size)/megabyte, err)
}

// residentContainers reads what n containers of pods have in memory beside their
// own processes. Before they were there, the pods' monitors had before.
func (r *record) residentContainers(pods []*pod, n int, before int64) {
	after, err := monitorsOf(pods)
	r.figure(MonitorMemory, "MB", float64(after-before)/megabyte/float64(n), err)
}

// monitorsOf is the memory of the monitors of pods and of their containers.
func monitorsOf(pods []*pod) (int64, error) {
	var ids []string
	for _, p := range pods {
		ids = append(append(ids, p.id), p.containers...)
	}
	monitors, _, err := gauge.Of(ids)
	if err != nil {
		return 0, err
	}
	return gauge.PSS(monitors...)
}
