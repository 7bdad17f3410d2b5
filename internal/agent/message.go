package agent

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// messageName names the message of a run of a container.
func messageName(name string, attempt uint32) string { return fmt.Sprintf("%s.%d", name, attempt) }

// mountMessage gives a run the file in which it may leave a message of its end.
func (w care) mountMessage(c *corev1.Container, run *criconfig.Run) error {
	path, err := w.a.cfg.Volumes.CreateMessageFile(string(w.manifest.UID), messageName(c.Name, run.Attempt))
	if err != nil {
		return err
	}
	run.Mounts = append(run.Mounts, &runtimeapi.Mount{ContainerPath: c.TerminationMessagePath, HostPath: path, SelinuxRelabel: true})
	return nil
}

// message is what a run that has ended has left to say or, if that is nothing,
// what is known of its end. The caller holds w.mu.
func (w care) message(st container.Status) string {
	if view.Container(st) != podplan.ContainerExited {
		return st.Message
	}
	if text, known := w.seen.messages[st.ID]; known {
		return text
	}
	text := w.a.cfg.Volumes.ReadMessage(string(w.manifest.UID), messageName(st.Name(), st.Config.GetMetadata().GetAttempt()))
	c := criconfig.FindContainer(w.manifest, st.Name())
	if text == "" && st.Exit.Code != 0 && c != nil && c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		text = view.LastLines(st)
	}
	if text == "" {
		text = st.Message
	}
	w.seen.messages[st.ID] = text
	return text
}

func mounted(c *corev1.Container, volume string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
}

// imageVolume returns the ID of the image that is a volume, which is pulled if
// that is asked for.
func (w care) imageVolume(v *corev1.Volume) (string, error) {
	ref, policy := v.Image.Reference, v.Image.PullPolicy
	img, err := w.a.cfg.Images.Get(ref)
	switch {
	case policy == corev1.PullAlways, err != nil && policy != corev1.PullNever:
		w.mu.Lock()
		ctx := w.wanted
		w.mu.Unlock()
		img, err = w.pullVolume(ctx, ref)
	case err != nil:
		err = fmt.Errorf("%w, and pullPolicy is Never: load it with husk image load", err)
	}
	if err != nil {
		return "", fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return img.ID, nil
}

func (w care) pullVolume(ctx context.Context, ref string) (image.Image, error) {
	w.tell(false, "", "Pulling", "pulling image "+ref)
	login := criconfig.LoginFor(w.manifest, ref, w.record().Objects)
	img, err := w.a.cfg.Images.Pull(ctx, ref, image.PullOptions{Username: login.Username, Password: login.Password})
	if err == nil {
		w.tell(false, "", "Pulled", "pulled image "+ref)
	}
	return img, err
}
