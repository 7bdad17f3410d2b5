package bench

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// The operations of pods and containers, by their names.
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
	Adopts      = "knows its pods again"
	Answers     = "manifest to answer"
	AllAnswer   = "until all answer"
	CreateStage = "of it, create"
	WholePod    = "whole life of a pod"
)

// The rates, by their names.
const (
	PodsUp      = "pods made"
	PodsDown    = "pods removed"
	PodsThrough = "pods made and removed"
	perSecond   = "per second"
)

// With what a workload was done, as its title tells.
const (
	AtATime  = "%d at a time"
	withPods = "%d pods"
)

// pods measures pods without containers.
func pods(ctx context.Context, s *session) error {
	if s.Parallel > 1 {
		return s.batches(ctx)
	}
	all, end := s.records("pods")
	defer end()
	s.turns(ctx, all, s.Samples, func(r *record, i int) error {
		p, err := r.timedPod(ctx)
		if err != nil {
			return err
		}
		if i == s.Samples-1 {
			r.resident([]*pod{p})
		}
		return r.timedEnd(ctx, p)
	})
	for _, r := range all {
		r.spent(s.Samples)
	}
	return nil
}

func (r *record) timedPod(ctx context.Context) (p *pod, err error) {
	err = r.time(RunPod, func() error {
		p, err = r.runPod(ctx)
		return err
	})
	return p, err
}

func (r *record) timedEnd(ctx context.Context, p *pod) error {
	return r.time(EndPod, func() error {
		if err := r.time(StopPod, func() error { return r.stopPod(ctx, p.id) }); err != nil {
			return err
		}
		return r.time(RemovePod, func() error { return r.removePod(ctx, p.id) })
	})
}

// batchRounds is how often each endpoint makes all its pods at a time.
const batchRounds = 3

// batches makes all pods before it removes them, many at a time. As long as an
// endpoint has its pods, no other is at work.
func (s *session) batches(ctx context.Context) error {
	all, end := s.records(title("pods", fmt.Sprintf(AtATime, s.Parallel)))
	defer end()
	made := map[*record]int{}
	var up, down = map[*record]time.Duration{}, map[*record]time.Duration{}
	s.turns(ctx, all, batchRounds, func(r *record, _ int) error {
		var mu sync.Mutex
		var there []*pod
		began := time.Now()
		atOnce(ctx, s.Samples, s.Parallel, func(int) {
			if p, err := r.timedPod(ctx); err == nil {
				mu.Lock()
				there = append(there, p)
				mu.Unlock()
			}
		})
		took := time.Since(began)
		up[r] += took
		r.together(took, RunPod)
		made[r] += len(there)
		r.resident(there)
		began = time.Now()
		atOnce(context.WithoutCancel(ctx), len(there), s.Parallel, func(i int) { _ = r.timedEnd(ctx, there[i]) })
		took = time.Since(began)
		down[r] += took
		r.together(took, StopPod, RemovePod, EndPod)
		return nil
	})
	for _, r := range all {
		r.rate(PodsUp, made[r], up[r])
		r.rate(PodsDown, made[r], down[r])
		r.rate(PodsThrough, made[r], up[r]+down[r])
		r.spent(made[r])
	}
	return nil
}

// rate adds a figure of n things in a time.
func (r *record) rate(name string, n int, took time.Duration) {
	if took > 0 {
		r.figure(name, perSecond, float64(n)/took.Seconds(), nil)
	}
}

// atOnce calls do for 0 to n-1, width of them at a time, until ctx ends.
func atOnce(ctx context.Context, n, width int, do func(i int)) {
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

// churnSlice is how long an endpoint is at work before the next has its turn.
const churnSlice = 5 * time.Second

// churn keeps making and removing pods with a container.
func churn(ctx context.Context, s *session) error {
	all, end := s.records(title("churn", fmt.Sprintf(AtATime, s.Parallel)))
	defer end()
	rounds := int((s.For + churnSlice - 1) / churnSlice)
	slice := s.For / time.Duration(rounds)
	lived := map[*record]int{}
	spent := map[*record]time.Duration{}
	s.turns(ctx, all, rounds, func(r *record, _ int) error {
		began := time.Now()
		var mu sync.Mutex
		var all sync.WaitGroup
		for range s.Parallel {
			all.Go(func() {
				for ctx.Err() == nil && time.Since(began) < slice && r.failed() < failuresMax {
					if r.life(ctx, s.Image) == nil {
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
		r.together(took, WholePod, RunPod, Create, Start, CreateStart, Stop, StopPod, RemovePod, EndPod)
		return nil
	})
	for _, r := range all {
		r.rate(PodsThrough, lived[r], spent[r])
		r.spent(lived[r])
		r.residentDaemon()
	}
	return nil
}

// life is that of one pod with a container.
func (r *record) life(ctx context.Context, image string) error {
	return r.time(WholePod, func() error {
		p, err := r.timedPod(ctx)
		if err != nil {
			return err
		}
		id, err := r.timedContainer(ctx, p, image)
		if err != nil {
			return err
		}
		if err := r.time(Stop, func() error { return r.stop(ctx, id) }); err != nil {
			return err
		}
		return r.timedEnd(ctx, p)
	})
}

func (r *record) timedContainer(ctx context.Context, p *pod, image string) (id string, err error) {
	err = r.time(CreateStart, func() error {
		if err := r.time(Create, func() error {
			id, err = r.create(ctx, p, image)
			return err
		}); err != nil {
			return err
		}
		return r.time(Start, func() error { return r.start(ctx, id) })
	})
	return id, err
}
