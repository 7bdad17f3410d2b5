package e2e

import (
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCRIManyPods creates pods ten at a time while a client watches events, then lists them all.
func TestCRIManyPods(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	const pods = 100
	events, err := c.GetContainerEvents(c.ctx, &runtimeapi.GetEventsRequest{})
	c.must(err)
	_, err = events.Header()
	c.must(err)
	each := func(ids []string, fn func(i int) error) {
		var all errgroup.Group
		all.SetLimit(10)
		for i := range ids {
			all.Go(func() error { return fn(i) })
		}
		c.must(all.Wait())
	}
	ids := make([]string, pods)
	began := time.Now()
	each(ids, func(i int) error {
		r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig()})
		ids[i] = r.GetPodSandboxId()
		return err
	})
	t.Logf("%d pods were created in %v", pods, time.Since(began))
	for name, list := range map[string]func() (int, error){
		"sandboxes": func() (int, error) {
			r, err := c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{})
			return len(r.GetItems()), err
		},
		"stats": func() (int, error) {
			r, err := c.ListPodSandboxStats(c.ctx, &runtimeapi.ListPodSandboxStatsRequest{})
			return len(r.GetStats()), err
		},
		"metrics": func() (int, error) {
			r, err := c.ListPodSandboxMetrics(c.ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
			return len(r.GetPodMetrics()), err
		},
	} {
		began = time.Now()
		n, err := list()
		c.must(err)
		t.Logf("%s were listed in %v", name, time.Since(began))
		if n != pods {
			t.Errorf("%d %s for %d pods", n, name, pods)
		}
	}
	each(ids, func(i int) error {
		return ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: ids[i]}))
	})
	seen := map[string]int{}
	for range 4 * pods { // each is created, started, stopped and deleted
		e, err := events.Recv()
		c.must(err)
		seen[e.GetContainerId()]++
	}
	for _, id := range ids {
		if seen[id] != 4 {
			t.Errorf("%d events of sandbox %s, want 4", seen[id], id)
		}
	}
	c.end()
}
