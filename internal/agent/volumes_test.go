package agent

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"

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
			containers: [{name: c, image: 'reg.test/none:1', volumeMounts: [{name: disk, mountPath: /d}, {name: memory, mountPath: /m}, {name: pod, mountPath: /p}]}]}}`, round))
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

// TestUnmountedVolumes has volumes that can't be set up. As in kubelet, that doesn't matter until a
// container mounts them.
func TestUnmountedVolumes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := podFrom(t, `{apiVersion: v1, kind: Pod, metadata: {name: p, uid: u}, spec: {
		volumes: [{name: settings, configMap: {name: none}}, {name: host, hostPath: {path: /none, type: Directory}}, {name: disk}],
		containers: [{name: c, image: 'reg.test/none:1'}, {name: d, image: 'reg.test/none:1', volumeMounts: [{name: disk, mountPath: /d}]}]}}`)
	v := &volumes{podState: &podState{a: h.Agent, manifest: p, rec: record{Pod: p}, startCtx: context.Background()}}
	var run criconfig.Run
	if err := v.mount(&p.Spec.Containers[0], &run); err != nil || len(run.Volumes) != 1 || run.Volumes["disk"] == "" {
		t.Errorf("%v, %v", run.Volumes, err)
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/h"}}
	if err := v.mount(&p.Spec.Containers[0], &run); err == nil {
		t.Errorf("a hostPath that doesn't exist is mounted: %v", run.Volumes)
	}
	if err := v.remove(); err != nil {
		t.Error(err)
	}
}

// TestSubPathFollowsAnnotations starts a container whose subPathExpr is invalid until the pod gets
// an annotation.
func TestSubPathFollowsAnnotations(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const text = `{apiVersion: v1, kind: Pod, metadata: {name: p, uid: u, annotations: {%s: dir}}, spec: {volumes: [{name: disk, emptyDir: {}}],
		containers: [{name: c, image: 'reg.test/none:1', env: [{name: A, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['part']"}}}],
			volumeMounts: [{name: disk, mountPath: /d, subPathExpr: $(A)/x}]}]}}`
	p := podFrom(t, fmt.Sprintf(text, "other"))
	state := &podState{a: h.Agent, manifest: p, rec: record{Pod: p}, startCtx: context.Background()}
	v := &volumes{podState: state}
	var run criconfig.Run
	if err := v.mount(&p.Spec.Containers[0], &run); err == nil {
		t.Errorf("without the annotation, the paths are %v", run.SubPaths)
	}
	state.rec.Pod = podFrom(t, fmt.Sprintf(text, "part"))
	if err := v.mount(&p.Spec.Containers[0], &run); err != nil {
		t.Error(err)
	}
	if err := v.remove(); err != nil {
		t.Error(err)
	}
}
