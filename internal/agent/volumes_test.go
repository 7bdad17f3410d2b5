package agent

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

// TestVolumesOfParallelStarts sets up the volumes of a pod for containers that start at the same
// time. Each volume must be set up once.
func TestVolumesOfParallelStarts(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for round := range 30 {
		p := podFrom(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: p, uid: u%d}, spec: {
			volumes: [{name: disk, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}, {name: pod, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}],
			containers: [{name: c, image: 'reg.test/none:1'}]}}`, round))
		s := &podState{a: h.Agent, manifest: p, rec: record{Pod: p}, startCtx: context.Background()}
		v := &volumes{podState: s}
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				var run criconfig.Run
				if err := v.mount(&p.Spec.Containers[0], &run); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(h.cfg.Volumes.State)); err != nil || len(mounts) != 1 {
			t.Errorf("%d mounts, %v", len(mounts), err)
		}
		if err := v.remove(); err != nil || t.Failed() {
			t.Fatal(round, err)
		}
	}
}
