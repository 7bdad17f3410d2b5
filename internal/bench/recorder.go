package bench

import (
	"slices"
	"sync"
	"time"

	"github.com/huskd/husk/internal/bench/gauge"
	"github.com/huskd/husk/internal/bench/report"
)

// recorder collects the results of one endpoint in one workload.
type recorder struct {
	endpoint    *endpoint // nil if the workload needs none
	workload    string
	name        string // of the endpoint, or of what else is compared
	progress    func(Step)
	counters    *gauge.Counters
	countersErr error // why there are no counters

	mu          sync.Mutex // guards the fields below
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
	elapsed time.Duration // total time of the samples, if they overlapped
}

// newRecorders returns a recorder for each endpoint. end adds their results to the session.
func (s *session) newRecorders(workload string) (all []*recorder, end func()) {
	for _, e := range s.endpoints {
		r := &recorder{endpoint: e, workload: workload, name: e.Name, progress: s.Progress}
		if pid, err := e.pid(); err != nil {
			r.countersErr = err
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

// newComparison returns the recorders of a workload without endpoints, one for each thing that it
// compares.
func (s *session) newComparison(workload string, things ...string) (all []*recorder, end func()) {
	for _, thing := range things {
		all = append(all, &recorder{workload: workload, name: thing, progress: s.Progress})
	}
	return all, func() {
		for _, r := range all {
			s.results = append(s.results, r.result())
		}
	}
}

func (r *recorder) result() report.Result {
	out := report.Result{Workload: r.workload, Endpoint: r.name, Figures: r.figures, Failures: r.failures}
	for _, o := range r.operations {
		out.Operations = append(out.Operations, report.Summarise(o.name, o.samples, o.errors, o.elapsed))
	}
	return out
}

// setRound records the progress of the workload.
func (r *recorder) setRound(done, total int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done, r.total = done, total
}

func (r *recorder) errorCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errors
}

// time measures do as an operation with that name.
func (r *recorder) time(name string, do func() error) error {
	began := time.Now()
	err := do()
	r.sample(name, time.Since(began), err)
	return err
}

// sample adds a sample or a failure to an operation.
func (r *recorder) sample(name string, took time.Duration, err error) {
	if err != nil {
		r.fail(name, err)
		return
	}
	r.mu.Lock()
	o := r.operation(name)
	o.samples = append(o.samples, took)
	step := r.step(name)
	r.mu.Unlock()
	if r.progress != nil {
		step.Took = took
		r.progress(step)
	}
}

// maxFailureTexts is the number of different failures that are reported.
const maxFailureTexts = 5

func (r *recorder) fail(name string, err error) {
	r.mu.Lock()
	r.errors++
	r.operation(name).errors++
	if text := name + ": " + err.Error(); len(r.failures) < maxFailureTexts && !slices.Contains(r.failures, text) {
		r.failures = append(r.failures, text)
	}
	step := r.step(name)
	r.mu.Unlock()
	if r.progress != nil {
		step.Err = err
		r.progress(step)
	}
}

func (r *recorder) step(name string) Step {
	return Step{Workload: r.workload, Endpoint: r.name, Operation: name, Done: r.done, Total: r.total}
}

// operation returns the operation with that name. The caller holds r.mu.
func (r *recorder) operation(name string) *operation {
	i := slices.IndexFunc(r.operations, func(o *operation) bool { return o.name == name })
	if i < 0 {
		i = len(r.operations)
		r.operations = append(r.operations, &operation{name: name})
	}
	return r.operations[i]
}

// addElapsed adds the time in which overlapping samples of the operations were taken.
func (r *recorder) addElapsed(took time.Duration, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.operation(name).elapsed += took
	}
}

// figure sets a figure, or the reason why it is absent.
func (r *recorder) figure(name, unit string, value float64, err error) {
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

// Names of the figures.
const (
	DaemonMemory  = "daemon, PSS"
	PodMemory     = "monitors and pause of a pod, PSS"
	MonitorMemory = "monitors of a container, PSS"
	CPUTime       = "CPU time for each"
	Programs      = "programs run for each"
	Flushes       = "disk flushes for each"
)

// recordCost reads the cost of the workload for the machine and divides it by n things done.
func (r *recorder) recordCost(n int) {
	if n == 0 {
		return
	}
	for _, f := range []struct {
		name, unit string
		kind       gauge.Kind
		per        float64
	}{{CPUTime, "ms", gauge.CPU, 1e6}, {Programs, "", gauge.Execs, 1}, {Flushes, "", gauge.Syncs, 1}} {
		err := r.countersErr
		var sum int64
		if err == nil {
			sum, err = r.counters.Read(f.kind)
		}
		r.figure(f.name, f.unit, float64(sum)/f.per/float64(n), err)
	}
}

// megabyte is the unit of memory in the table.
const megabyte = 1e6

// recordPodMemory records the memory of the daemon, and of the processes for pods without
// containers.
func (r *recorder) recordPodMemory(pods []*pod) {
	r.recordDaemonMemory()
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

func (r *recorder) recordDaemonMemory() {
	pid, err := r.endpoint.pid()
	var size int64
	if err == nil {
		size, err = gauge.PSS(pid)
	}
	r.figure(DaemonMemory, "MB", float64(size)/megabyte, err)
}

// recordContainerMemory records the memory of the processes for n containers, without the
// containers' own. before is the memory of the pods' monitors before the containers were created.
func (r *recorder) recordContainerMemory(pods []*pod, n int, before int64) {
	after, err := monitorsOf(pods)
	r.figure(MonitorMemory, "MB", float64(after-before)/megabyte/float64(n), err)
}

// monitorsOf returns the memory of the monitors of pods and of their containers.
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
