package bench

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containers benchmarks containers, one after another in one pod.
func containers(ctx context.Context, s *session) error {
	all, end := s.newRecorders("containers")
	defer end()
	hosts := map[*recorder]*pod{}
	ready := s.prepare(ctx, all, func(r *recorder) (err error) {
		hosts[r], err = r.endpoint.runPod(ctx)
		return err
	})
	s.interleave(ctx, ready, s.Samples, func(r *recorder, _ int) error {
		id, err := r.timedContainer(ctx, hosts[r], s.Image)
		if err != nil {
			return err
		}
		if err := r.time(Stop, func() error { return r.endpoint.stop(ctx, id) }); err != nil {
			return err
		}
		return r.time(Remove, func() error { return r.endpoint.remove(ctx, id) })
	})
	for _, r := range ready {
		r.recordCost(s.Samples)
	}
	return nil
}

// execs benchmarks programs run in a container.
func execs(ctx context.Context, s *session) error {
	all, end := s.newRecorders("exec")
	defer end()
	inside := map[*recorder]string{}
	ready := s.prepare(ctx, all, func(r *recorder) error {
		p, err := r.endpoint.runPod(ctx)
		if err == nil {
			inside[r], err = r.endpoint.runContainer(ctx, p, s.Image)
		}
		return err
	})
	s.interleave(ctx, ready, s.Samples, func(r *recorder, _ int) error {
		return r.time(Exec, func() error { return r.endpoint.exec(ctx, inside[r]) })
	})
	for _, r := range ready {
		r.recordCost(s.Samples)
		r.recordDaemonMemory()
	}
	return nil
}

// setupParallelism is how many pods are created at a time when their creation is not measured.
const setupParallelism = 4

// createPods creates pods with one container each.
func (s *session) createPods(ctx context.Context, r *recorder) (pods []*pod, err error) {
	var mu sync.Mutex
	parallel(ctx, s.Pods, setupParallelism, func(int) {
		p, failed := r.endpoint.runPod(ctx)
		mu.Lock()
		defer mu.Unlock()
		if failed != nil {
			err = failed
			return
		}
		pods = append(pods, p)
	})
	if err != nil || ctx.Err() != nil {
		return pods, err
	}
	r.recordPodMemory(pods)
	before, _ := monitorsOf(pods)
	parallel(ctx, len(pods), setupParallelism, func(i int) {
		if _, failed := r.endpoint.runContainer(ctx, pods[i], s.Image); failed != nil {
			mu.Lock()
			defer mu.Unlock()
			err = failed
		}
	})
	if err != nil || ctx.Err() != nil {
		return pods, err
	}
	r.recordDaemonMemory()
	r.recordContainerMemory(pods, len(pods), before)
	return pods, nil
}

// lists benchmarks listing many pods.
func lists(ctx context.Context, s *session) error {
	all, end := s.newRecorders(workloadTitle("list", fmt.Sprintf(withPods, s.Pods)))
	defer end()
	pods := map[*recorder][]*pod{}
	ready := s.prepare(ctx, all, func(r *recorder) (err error) {
		pods[r], err = s.createPods(ctx, r)
		return err
	})
	s.interleave(ctx, ready, s.Samples, func(r *recorder, i int) error {
		if err := r.time(ListPods, func() error { return r.endpoint.listPods(ctx, s.Pods) }); err != nil {
			return err
		}
		if err := r.time(ListAll, func() error { return r.endpoint.listContainers(ctx, s.Pods) }); err != nil {
			return err
		}
		return r.time(PodStatus, func() error {
			one := pods[r][i%len(pods[r])]
			_, err := call(ctx, r.endpoint.cri.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: one.id})
			return err
		})
	})
	return nil
}

// listPods lists the pods of this run, and fails unless want of them are ready.
func (e *endpoint) listPods(ctx context.Context, want int) error {
	answer, err := call(ctx, e.cri.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{runLabel: e.run}}})
	if err != nil {
		return err
	}
	count := 0
	for _, p := range answer.Items {
		if p.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			count++
		}
	}
	if count != want {
		return fmt.Errorf("%d pods are ready, want %d", count, want)
	}
	return nil
}

// listContainers lists the containers of this run, and fails unless want of them are running.
func (e *endpoint) listContainers(ctx context.Context, want int) error {
	answer, err := call(ctx, e.cri.ListContainers, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{runLabel: e.run}}})
	if err != nil {
		return err
	}
	running := 0
	for _, c := range answer.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			running++
		}
	}
	if running != want {
		return fmt.Errorf("%d containers are running, want %d", running, want)
	}
	return nil
}

// restarts benchmarks restarts of a runtime with pods.
func restarts(ctx context.Context, s *session) error {
	all, end := s.newRecorders(workloadTitle("restart", fmt.Sprintf(withPods, s.Pods)))
	defer end()
	ready := s.prepare(ctx, all, func(r *recorder) error {
		_, err := s.createPods(ctx, r)
		return err
	})
	s.interleave(ctx, ready, s.Samples, func(r *recorder, _ int) error { return r.restart(ctx, s.Pods) })
	for _, r := range ready {
		r.recordDaemonMemory()
	}
	return nil
}

// restartTimeout is how long a runtime may take to restart.
const restartTimeout = 2 * time.Minute

// restart restarts the runtime and measures the time until it serves, and until it lists all its
// pods.
func (r *recorder) restart(ctx context.Context, pods int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restartTimeout)
	defer cancel()
	was, err := r.endpoint.pid()
	if err != nil {
		r.fail(Serves, err)
		return err
	}
	began := time.Now()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, r.endpoint.Restart[0], r.endpoint.Restart[1:]...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		err = fmt.Errorf("%s: %w: %s", r.endpoint.Restart[0], err, bytes.TrimSpace(output.Bytes()))
		r.fail(Serves, err)
		return err
	}
	for _, stage := range []struct {
		name string
		done func() error
	}{
		{Serves, func() error {
			pid, err := r.endpoint.pid()
			switch {
			case err != nil:
				return err
			case pid == was:
				return fmt.Errorf("process %d still serves: the restart command has not ended it", pid)
			}
			_, err = r.endpoint.cri.Version(ctx, &runtimeapi.VersionRequest{})
			return withoutPrefix(err)
		}},
		{Adopts, func() error {
			if err := r.endpoint.listPods(ctx, pods); err != nil {
				return err
			}
			return r.endpoint.listContainers(ctx, pods)
		}},
	} {
		if err := poll(ctx, pollInterval, stage.done); err != nil {
			r.fail(stage.name, err)
			return err
		}
		r.sample(stage.name, time.Since(began), nil)
	}
	return nil
}

// pollInterval is the time between two polls: a small fraction of what is measured.
const pollInterval = time.Millisecond

// poll calls done after each interval until it succeeds. When ctx ends, it returns the last error.
func poll(ctx context.Context, interval time.Duration, done func() error) error {
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(interval):
		}
	}
}
