package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Names of the operations on pods and containers.
const (
	RunPod      = "RunPodSandbox"
	StopPod     = "StopPodSandbox"
	RemovePod   = "RemovePodSandbox"
	EndPod      = "stop and remove"
	Create      = "CreateContainer"
	Start       = "StartContainer"
	CreateStart = "create and start"
	Stop        = "StopContainer"
	Remove      = "RemoveContainer"
	Exec        = "ExecSync"
	ListPods    = "ListPodSandbox"
	ListAll     = "ListContainers"
	PodStatus   = "PodSandboxStatus"
	Serves      = "serves again"
	Adopts      = "lists its pods again"
	Answers     = "manifest to answer"
	AllAnswer   = "all manifests to answer"
	CreateStage = "stage: create"
	WholePod    = "whole life of a pod"
)

// Names of the rates.
const (
	PodsUp      = "pods created"
	PodsDown    = "pods removed"
	PodsThrough = "pods created and removed"
	perSecond   = "per second"
)

// Parameters in the title of a workload.
const (
	AtATime  = "%d at a time"
	withPods = "%d pods"
)

// pods benchmarks pods without containers.
func pods(ctx context.Context, s *session) error {
	if s.Parallel > 1 {
		return s.podBatches(ctx)
	}
	all, end := s.newRecorders("pods")
	defer end()
	s.interleave(ctx, all, s.Samples, func(r *recorder, i int) error {
		p, err := r.timedPod(ctx)
		if err != nil {
			return err
		}
		if i == s.Samples-1 {
			r.recordPodMemory([]*pod{p})
		}
		return r.timedEnd(ctx, p)
	})
	for _, r := range all {
		r.recordCost(s.Samples)
	}
	return nil
}

// sharedPods benchmarks pods without containers that have a PID namespace.
func sharedPods(ctx context.Context, s *session) error {
	all, end := s.newRecorders("shared")
	defer end()
	s.interleave(ctx, all, s.Samples, func(r *recorder, _ int) error {
		var p *pod
		err := r.time(RunPod, func() (err error) {
			p, err = r.endpoint.runPodOf(ctx, r.endpoint.podConfig(runtimeapi.NamespaceMode_POD))
			return err
		})
		if err != nil {
			return err
		}
		return r.timedEnd(ctx, p)
	})
	return nil
}

func (r *recorder) timedPod(ctx context.Context) (p *pod, err error) {
	err = r.time(RunPod, func() error {
		p, err = r.endpoint.runPod(ctx)
		return err
	})
	return p, err
}

func (r *recorder) timedEnd(ctx context.Context, p *pod) error {
	return r.time(EndPod, func() error {
		if err := r.time(StopPod, func() error { return r.endpoint.stopPod(ctx, p.id) }); err != nil {
			return err
		}
		return r.time(RemovePod, func() error { return r.endpoint.removePod(ctx, p.id) })
	})
}

// batchRounds is how often each endpoint creates all its pods.
const batchRounds = 3

// podBatches creates all pods of an endpoint, many at a time, before it removes them. No other
// endpoint is active as long as they exist.
func (s *session) podBatches(ctx context.Context) error {
	all, end := s.newRecorders(workloadTitle("pods", fmt.Sprintf(AtATime, s.Parallel)))
	defer end()
	created := map[*recorder]int{}
	var up, down = map[*recorder]time.Duration{}, map[*recorder]time.Duration{}
	s.interleave(ctx, all, batchRounds, func(r *recorder, _ int) error {
		var mu sync.Mutex
		var pods []*pod
		began := time.Now()
		parallel(ctx, s.Samples, s.Parallel, func(int) {
			if p, err := r.timedPod(ctx); err == nil {
				mu.Lock()
				pods = append(pods, p)
				mu.Unlock()
			}
		})
		took := time.Since(began)
		up[r] += took
		r.addElapsed(took, RunPod)
		created[r] += len(pods)
		r.recordPodMemory(pods)
		began = time.Now()
		parallel(context.WithoutCancel(ctx), len(pods), s.Parallel, func(i int) { _ = r.timedEnd(ctx, pods[i]) })
		took = time.Since(began)
		down[r] += took
		r.addElapsed(took, StopPod, RemovePod, EndPod)
		return nil
	})
	for _, r := range all {
		r.rate(PodsUp, created[r], up[r])
		r.rate(PodsDown, created[r], down[r])
		r.rate(PodsThrough, created[r], up[r]+down[r])
		r.recordCost(created[r])
	}
	return nil
}

// rate adds the figure for a rate of n things in a time.
func (r *recorder) rate(name string, n int, took time.Duration) {
	if took > 0 {
		r.figure(name, perSecond, float64(n)/took.Seconds(), nil)
	}
}

// parallel calls do for 0 to n-1, width of them at a time, until ctx ends.
func parallel(ctx context.Context, n, width int, do func(i int)) {
	var all sync.WaitGroup
	work := make(chan int)
	for range min(width, n) {
		all.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		work <- i
	}
	close(work)
	all.Wait()
}

// churnSlice is about how long an endpoint's turn lasts.
const churnSlice = 5 * time.Second

// churn keeps creating and removing pods with a container.
func churn(ctx context.Context, s *session) error {
	all, end := s.newRecorders(workloadTitle("churn", fmt.Sprintf(AtATime, s.Parallel)))
	defer end()
	rounds := int((s.For + churnSlice - 1) / churnSlice)
	slice := s.For / time.Duration(rounds)
	lived := map[*recorder]int{}
	spent := map[*recorder]time.Duration{}
	s.interleave(ctx, all, rounds, func(r *recorder, _ int) error {
		began := time.Now()
		var mu sync.Mutex
		var all sync.WaitGroup
		for range s.Parallel {
			all.Go(func() {
				for ctx.Err() == nil && time.Since(began) < slice && r.errorCount() < maxFailures {
					if r.podLife(ctx, s.Image) == nil {
						mu.Lock()
						lived[r]++
						mu.Unlock()
					}
				}
			})
		}
		all.Wait()
		took := time.Since(began)
		spent[r] += took
		r.addElapsed(took, WholePod, RunPod, Create, Start, CreateStart, Stop, StopPod, RemovePod, EndPod)
		return nil
	})
	for _, r := range all {
		r.rate(PodsThrough, lived[r], spent[r])
		r.recordCost(lived[r])
		r.recordDaemonMemory()
	}
	return nil
}

// podLife creates and removes one pod with a container.
func (r *recorder) podLife(ctx context.Context, image string) error {
	return r.time(WholePod, func() error {
		p, err := r.timedPod(ctx)
		if err != nil {
			return err
		}
		id, err := r.timedContainer(ctx, p, image)
		if err != nil {
			return err
		}
		if err := r.time(Stop, func() error { return r.endpoint.stop(ctx, id) }); err != nil {
			return err
		}
		return r.timedEnd(ctx, p)
	})
}

func (r *recorder) timedContainer(ctx context.Context, p *pod, image string) (id string, err error) {
	err = r.time(CreateStart, func() error {
		if err := r.time(Create, func() error {
			id, err = r.endpoint.create(ctx, p, image)
			return err
		}); err != nil {
			return err
		}
		return r.time(Start, func() error { return r.endpoint.start(ctx, id) })
	})
	return id, err
}
