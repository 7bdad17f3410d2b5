package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// volumes sets up and removes the volumes of a pod.
type volumes struct {
	*podState
	images *puller
	// changing is held while volumes are set up, written or removed: containers start in parallel.
	// Invariant: it is locked before mu.
	changing sync.Mutex
	// ended says that the pod has ended. Invariant: mu guards it.
	ended bool
}

// mountError is the error of a volume that can't be set up. Those of images are errors of pulling.
type mountError struct {
	volume string
	error
}

func (e mountError) Unwrap() error { return e.error }

// mount sets up the volumes that a container mounts and puts their paths into run.
func (v *volumes) mount(c *corev1.Container, run *criconfig.Run) (err error) {
	spec, pod := &v.manifest.Spec, v.record().Pod // which may have new ephemeral containers
	run.Volumes, run.Images = map[string]string{}, map[string]string{}
	for i := range spec.Volumes {
		vol := &spec.Volumes[i]
		switch {
		case !manifest.IsMounted(pod, vol.Name):
		case len(manifest.Projections(vol)) > 0:
			run.Volumes[vol.Name], err = v.write(vol)
		case vol.Image == nil:
			run.Volumes[vol.Name], err = v.setUp(vol)
		case mounts(c, vol.Name): // an image that only other containers mount isn't pulled
			run.Images[vol.Name], err = v.image(vol)
		}
		switch {
		case err != nil && vol.Image != nil:
			return err
		case err != nil:
			return mountError{vol.Name, err}
		}
	}
	if run.EnvFiles, err = volume.ReadEnvFiles(c, run.Volumes); err != nil {
		return err
	}
	if run.SubPaths, err = criconfig.SubPaths(pod, c, *run, v.a.cfg.Node()); err != nil {
		return err
	}
	for i, part := range run.SubPaths {
		if _, is := run.Images[c.VolumeMounts[i].Name]; is {
			continue
		}
		name := fmt.Sprintf("%s.%d", c.Name, i)
		if run.SubPaths[i], err = v.a.cfg.Volumes.SubPath(v.uid(), run.Volumes[c.VolumeMounts[i].Name], part, name); err != nil {
			return fmt.Errorf("container %q: volumeMounts[%d]: %w", c.Name, i, err)
		}
	}
	return nil
}

func (v *volumes) setUp(vol *corev1.Volume) (string, error) {
	v.changing.Lock()
	defer v.changing.Unlock()
	if vol.PersistentVolumeClaim == nil {
		return v.a.cfg.Volumes.SetUp(v.uid(), *vol, v.manifest.Spec.SecurityContext.FSGroup)
	}
	v.mu.Lock()
	v.ended = false
	v.mu.Unlock()
	name := vol.PersistentVolumeClaim.ClaimName
	return v.a.cfg.Volumes.SetUpClaim(v.manifest, name, v.record().Objects[manifest.ObjectKey(manifest.KindClaim, v.manifest.Namespace, name)])
}

// noteEnd frees the claims of a pod that has ended. The caller holds mu.
func (v *volumes) noteEnd(phase podplan.Phase) {
	if v.ended || phase != podplan.PhaseSucceeded && phase != podplan.PhaseFailed {
		return
	}
	v.ended = true
	v.a.background.Go(v.end)
}

// end lets other pods have the claims of a pod that has ended.
func (v *volumes) end() {
	v.changing.Lock()
	defer v.changing.Unlock()
	v.mu.Lock()
	ended := v.ended
	v.mu.Unlock()
	if !ended || !hasClaims(v.manifest) {
		return
	}
	if err := v.a.cfg.Volumes.Ended(v.uid()); err != nil {
		v.a.cfg.Log.Warn("agent: the claims of a pod that has ended are not free", "pod", v.name(), "error", err)
	}
	claimsFreed(v.a)
}

func hasClaims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

// claimsFreed makes the pods with claims try again what has failed.
func claimsFreed(a *Agent) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, w := range a.workers.byName {
		if hasClaims(w.manifest) {
			w.mu.Lock()
			w.resetBackoffs()
			w.mu.Unlock()
			w.nudge()
		}
	}
}

func mounts(c *corev1.Container, volume string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
}

// image returns the ID of an image volume's image, which it pulls if the pull policy says so.
func (v *volumes) image(vol *corev1.Volume) (string, error) {
	ref, policy := vol.Image.Reference, vol.Image.PullPolicy
	img, allowed, err := v.images.local(ref, v.record().Objects)
	if err == nil && !allowed {
		err = image.Denied(ref)
	}
	switch {
	case policy == corev1.PullAlways, policy == "" && len(img.Digests) > 0, err != nil && policy != corev1.PullNever:
		v.mu.Lock()
		ctx := v.startCtx
		v.mu.Unlock()
		img, err = v.images.fetch(ctx, ref, "", nil)
	case errdefs.IsNotFound(err):
		err = fmt.Errorf("%w, and pullPolicy is Never: %s", err, v.record().from().Image("pullPolicy"))
	case err != nil:
		err = fmt.Errorf("%w, and pullPolicy is Never", err)
	}
	if err != nil {
		return "", fmt.Errorf("volume %s: %w", vol.Name, err)
	}
	return img.ID, nil
}

// write writes the files of a projected volume and returns its path.
func (v *volumes) write(vol *corev1.Volume) (string, error) {
	v.changing.Lock()
	defer v.changing.Unlock()
	rec := v.record()
	files, err := criconfig.Files(rec.Pod, vol, rec.Objects, v.a.cfg.Node())
	if err != nil {
		return "", err
	}
	var out []volume.File
	for _, f := range files {
		out = append(out, volume.File{Path: f.Path, Data: f.Data, Mode: os.FileMode(f.Mode), User: f.User})
	}
	return v.a.cfg.Volumes.Write(v.uid(), vol.Name, out, rec.Pod.Spec.SecurityContext.FSGroup)
}

// refresh writes the projected volumes again, for running containers that mount them.
func (v *volumes) refresh() {
	for i := range v.manifest.Spec.Volumes {
		vol := &v.manifest.Spec.Volumes[i]
		if len(manifest.Projections(vol)) == 0 || !manifest.IsMounted(v.record().Pod, vol.Name) || v.record().Want != podplan.Run {
			continue
		}
		if _, err := v.write(vol); err != nil {
			v.a.cfg.Log.Warn("agent: updating a volume failed", "pod", v.name(), "error", err)
		}
	}
}

// remove removes all volumes.
func (v *volumes) remove() error {
	v.changing.Lock()
	defer v.changing.Unlock()
	err := v.a.cfg.Volumes.TearDown(v.uid())
	if err == nil && hasClaims(v.manifest) {
		v.a.background.Go(func() { claimsFreed(v.a) })
	}
	return err
}

// removeEvicted removes the volumes of an evicted pod and records that.
func (v *volumes) removeEvicted(context.Context) error {
	if err := v.remove(); err != nil {
		return fmt.Errorf("pod %s: %w", v.name(), err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	rec := v.rec
	if rec.Evicted == nil {
		return nil
	}
	done := *rec.Evicted
	done.Emptied = true
	rec.Evicted = &done
	return v.save(v.a.records.Put, rec)
}
