package agent

import (
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// mounts makes available what a container mounts, and notes where it is.
func (w care) mounts(c *corev1.Container, run *criconfig.Run) (err error) {
	uid, spec := string(w.manifest.UID), &w.manifest.Spec
	run.Volumes, run.Images = map[string]string{}, map[string]string{}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		switch {
		case len(manifest.Projections(v)) > 0:
			run.Volumes[v.Name], err = w.write(v)
		case v.Image == nil:
			run.Volumes[v.Name], err = w.a.cfg.Volumes.SetUp(uid, *v, spec.SecurityContext.FSGroup)
		case mounted(c, v.Name): // what others mount is not waited for
			run.Images[v.Name], err = w.imageVolume(v)
		}
		if err != nil {
			return err
		}
	}
	if run.SubPaths, err = criconfig.SubPaths(w.manifest, c, *run, w.a.cfg.Node()); err != nil {
		return err
	}
	for i, part := range run.SubPaths {
		if _, is := run.Images[c.VolumeMounts[i].Name]; is {
			continue
		}
		name := fmt.Sprintf("%s.%d", c.Name, i)
		if run.SubPaths[i], err = w.a.cfg.Volumes.SubPath(uid, run.Volumes[c.VolumeMounts[i].Name], part, name); err != nil {
			return fmt.Errorf("container %q: volumeMounts[%d]: %w", c.Name, i, err)
		}
	}
	return nil
}

// write writes the files of a volume that come from the manifest.
func (w care) write(v *corev1.Volume) (string, error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	rec := w.record()
	files, err := criconfig.Files(rec.Pod, v, rec.Objects, w.a.cfg.Node())
	if err != nil {
		return "", err
	}
	var out []volume.File
	for _, f := range files {
		out = append(out, volume.File{Path: f.Path, Data: f.Data, Mode: os.FileMode(f.Mode)})
	}
	return w.a.cfg.Volumes.Write(string(rec.Pod.UID), v.Name, out, rec.Pod.Spec.SecurityContext.FSGroup)
}

// give gives the pod the objects that it refers to as they are now. Its volumes
// follow; a container has in its environment what there was when it started.
func (w care) give(objects manifest.Objects) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if rec.Objects.Equal(objects) {
		return nil
	}
	rec.Objects = objects
	if err := w.a.records.Put(string(rec.Pod.UID), rec); err != nil {
		return fmt.Errorf("pod %s: %w", nameOf(rec.Pod), err)
	}
	w.rec = rec
	// What could not be started for want of them is tried at once.
	w.backoffs = w.backoffs.Reset()
	clear(w.seen.startFailures)
	w.nudge()
	if rec.Want == podplan.Run && len(w.sandboxes) > 0 {
		w.a.background.Go(w.refresh)
	}
	return nil
}

// refresh writes anew what running containers may have mounted.
func (w care) refresh() {
	for i := range w.manifest.Spec.Volumes {
		v := &w.manifest.Spec.Volumes[i]
		if len(manifest.Projections(v)) == 0 || w.record().Want != podplan.Run {
			continue
		}
		if _, err := w.write(v); err != nil {
			w.a.cfg.Log.Warn("agent: the volume stays as it was", "pod", nameOf(w.manifest), "error", err)
		}
	}
}
