package kubelet

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

const (
	rounds = 3
	most   = 24 // pods at the end of scaling up
	fewest = 4  // pods at the end of scaling down
)

// TestHuskdKilledUnderLoad kills huskd while the kubelet creates pods and while it deletes them.
// Running containers must not be affected.
func TestHuskdKilledUnderLoad(t *testing.T) {
	c := newCluster(t)
	c.startControllers()
	c.join()
	c.awaitNodeReady()
	c.deploy("steady", web, 3)
	c.deploy("load", web, fewest)
	steady := c.awaitRollout("steady")
	c.awaitRollout("load")
	ran := map[types.UID]string{}
	kills, began := 0, time.Now()
	kill := func() {
		c.huskd.Kill()
		kills++
	}
	for round := range rounds {
		c.scale("load", most)
		for _, share := range []int{most / 4, most / 2} {
			c.awaitLoad(func(ready int) bool { return ready >= share })
			c.checkContainers(ran)
			kill()
			if round == 1 { // also while it adopts the containers
				c.huskd = c.Launch()
				kill()
			}
			c.huskd = c.Huskd()
		}
		c.awaitRollout("load")
		c.scale("load", fewest)
		for _, share := range []int{most - 2, most / 2} {
			c.awaitLoad(func(ready int) bool { return ready <= share })
			c.checkContainers(ran)
			kill()
			c.huskd = c.Huskd()
		}
	}
	c.awaitRollout("load")
	c.checkContainers(ran)
	if got, want := instances(c.awaitRollout("steady")), instances(steady); !slices.Equal(got, want) {
		t.Errorf("containers %v are running, before the load %v were", got, want)
	}
	t.Logf("%d pods were created and deleted %d times in %v, huskd was killed %d times, %d pods were seen running", most-fewest, rounds, time.Since(began).Round(time.Second), kills, len(ran))
	c.checkServes("steady", "version 1\n")
	c.checkServes("load", "version 1\n")
	c.checkInSync()
	c.undeploy("load")
	c.undeploy("steady")
	c.awaitGone()
	c.logLatencies()
	c.end()
}

// awaitLoad waits until the number of ready pods of the load meets a condition.
func (c *cluster) awaitLoad(condition func(ready int) bool) {
	c.t.Helper()
	node.Eventually(c.t, 4*time.Minute, func() string {
		c.checkRunning()
		n := 0
		for _, p := range c.pods("load") {
			if ready(&p) {
				n++
			}
		}
		if !condition(n) {
			return fmt.Sprintf("%d pods of the load are ready", n)
		}
		return ""
	})
}

// checkContainers records the running container of each pod. It fails the test if a pod that isn't
// being deleted no longer runs the container of the last call, or runs a second one. It asks huskd,
// because the kubelet's view is late.
func (c *cluster) checkContainers(ran map[types.UID]string) {
	c.t.Helper()
	running := map[types.UID][]string{}
	for _, s := range c.runtime().containers {
		if s.State == runtimeapi.ContainerState_CONTAINER_RUNNING && s.Metadata.Name == "web" {
			uid := types.UID(s.Labels["io.kubernetes.pod.uid"])
			running[uid] = append(running[uid], s.Id)
		}
	}
	// The pods are listed last, so a pod that was deleted meanwhile has its deletion time.
	for _, p := range c.allPods() {
		now, before := running[p.UID], ran[p.UID]
		switch {
		case p.DeletionTimestamp != nil:
			continue
		case len(now) > 1, before != "" && !slices.Contains(now, before):
			c.t.Errorf("pod %s ran container %q and runs %v: %s", p.Name, before, now, describe(&p))
		case len(now) == 1:
			ran[p.UID] = now[0]
		}
	}
}
