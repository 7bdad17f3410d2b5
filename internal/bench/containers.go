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

// containers measures containers, one after another in one pod.
func containers(ctx context.Context, s *session) error {
	all, end := s.records("containers")
	defer end()
	host := map[*record]*pod{}
	able := s.each(ctx, all, func(r *record) (err error) {
		host[r], err = r.runPod(ctx)
		return err
	})
	s.turns(ctx, able, s.Samples, func(r *record, _ int) error {
		id, err := r.timedContainer(ctx, host[r], s.Image)
		if err != nil {
			return err
		}
		if err := r.time(Stop, func() error { return r.stop(ctx, id) }); err != nil {
			return err
		}
		return r.time(Remove, func() error { return r.remove(ctx, id) })
	})
	for _, r := range able {
		r.spent(s.Samples)
	}
	return nil
}

// execs measures programs that are run in a container.
func execs(ctx context.Context, s *session) error {
	all, end := s.records("exec")
	defer end()
	inside := map[*record]string{}
	able := s.each(ctx, all, func(r *record) error {
		p, err := r.runPod(ctx)
		if err == nil {
			inside[r], err = r.runContainer(ctx, p, s.Image)
		}
		return err
	})
	s.turns(ctx, able, s.Samples, func(r *record, _ int) error {
		return r.time(Exec, func() error { return r.exec(ctx, inside[r]) })
	})
	for _, r := range able {
		r.spent(s.Samples)
		r.residentDaemon()
	}
	return nil
}

// holders is how many pods are made at a time where only that they are there matters.
const holders = 4

// hold makes pods with a container each.
func (s *session) hold(ctx context.Context, r *record) (pods []*pod, err error) {
	var mu sync.Mutex
	atOnce(ctx, s.Pods, holders, func(int) {
		p, failed := r.runPod(ctx)
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
	r.resident(pods)
	before, _ := monitorsOf(pods)
	atOnce(ctx, len(pods), holders, func(i int) {
		if _, failed := r.runContainer(ctx, pods[i], s.Image); failed != nil {
			mu.Lock()
			defer mu.Unlock()
			err = failed
		}
	})
	if err != nil || ctx.Err() != nil {
		return pods, err
	}
	r.residentDaemon()
	r.residentContainers(pods, len(pods), before)
	return pods, nil
}

// lists measures how a runtime tells of many pods.
func lists(ctx context.Context, s *session) error {
	all, end := s.records(title("list", fmt.Sprintf(withPods, s.Pods)))
	defer end()
	there := map[*record][]*pod{}
	able := s.each(ctx, all, func(r *record) (err error) {
		there[r], err = s.hold(ctx, r)
		return err
	})
	s.turns(ctx, able, s.Samples, func(r *record, i int) error {
		if err := r.time(ListPods, func() error { return r.listPods(ctx, s.Pods) }); err != nil {
			return err
		}
		if err := r.time(ListAll, func() error { return r.listContainers(ctx, s.Pods) }); err != nil {
			return err
		}
		return r.time(PodStatus, func() error {
			one := there[r][i%len(there[r])]
			_, err := call(ctx, r.cri.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: one.id})
			return err
		})
	})
	return nil
}

// listPods lists the pods of this run, of which want have to be ready.
func (e *endpoint) listPods(ctx context.Context, want int) error {
	answer, err := call(ctx, e.cri.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{runLabel: e.run}}})
	if err != nil {
		return err
	}
	ready := 0
	for _, p := range answer.Items {
		if p.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready++
		}
	}
	if ready != want {
		return fmt.Errorf("%d pods are ready instead of %d", ready, want)
	}
	return nil
}

// listContainers lists the containers of this run, of which want have to run.
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
		return fmt.Errorf("%d containers run instead of %d", running, want)
	}
	return nil
}

// restarts measures how a runtime comes back with its pods.
func restarts(ctx context.Context, s *session) error {
	all, end := s.records(title("restart", fmt.Sprintf(withPods, s.Pods)))
	defer end()
	able := s.each(ctx, all, func(r *record) error {
		_, err := s.hold(ctx, r)
		return err
	})
	s.turns(ctx, able, s.Samples, func(r *record, _ int) error { return r.restart(ctx, s.Pods) })
	for _, r := range able {
		r.residentDaemon()
	}
	return nil
}

// again is how long a runtime is given to come back.
const again = 2 * time.Minute

// restart restarts the runtime and times until it serves, and until it knows
// of all its pods.
func (r *record) restart(ctx context.Context, pods int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), again)
	defer cancel()
	was, err := r.pid()
	if err != nil {
		r.fail(Serves, err)
		return err
	}
	began := time.Now()
	var says bytes.Buffer
	cmd := exec.CommandContext(ctx, r.Restart[0], r.Restart[1:]...)
	cmd.Stdout, cmd.Stderr = &says, &says
	if err := cmd.Run(); err != nil {
		err = fmt.Errorf("%s: %w: %s", r.Restart[0], err, bytes.TrimSpace(says.Bytes()))
		r.fail(Serves, err)
		return err
	}
	for _, stage := range []struct {
		name string
		done func() error
	}{
		{Serves, func() error {
			pid, err := r.pid()
			switch {
			case err != nil:
				return err
			case pid == was:
				return fmt.Errorf("process %d serves still: the restart command has not ended it", pid)
			}
			_, err = r.cri.Version(ctx, &runtimeapi.VersionRequest{})
			return plain(err)
		}},
		{Adopts, func() error {
			if err := r.listPods(ctx, pods); err != nil {
				return err
			}
			return r.listContainers(ctx, pods)
		}},
	} {
		if err := until(ctx, lookGap, stage.done); err != nil {
			r.fail(stage.name, err)
			return err
		}
		r.sample(stage.name, time.Since(began), nil)
	}
	return nil
}

// lookGap is the time between two looks at what is waited for: a small part of
// what is measured.
const lookGap = time.Millisecond

// until waits for done to succeed, which is tried again after each gap. When ctx ends, it returns the last failure.
func until(ctx context.Context, gap time.Duration, done func() error) error {
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(gap):
		}
	}
}
