package agent

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
)

// AddEphemeral adds an ephemeral container with a new name to a pod that should run. It starts
// once, as soon as the pod has a sandbox.
func (a *Agent) AddEphemeral(uid string, c corev1.EphemeralContainer) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	switch {
	case strings.HasPrefix(rec.Source, string(source.API)):
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s is the cluster's: use kubectl debug -n %s %s", w.name(), rec.Pod.Namespace, rec.Pod.Name))
	case w.spec().Want != podplan.Run:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s isn't running: husk start %s starts it", w.name(), w.name()))
	case ephemeralIndex(rec.Pod, c.Name) >= 0:
		return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("pod %s has a container %s already", w.name(), c.Name))
	}
	with := func(pod *corev1.Pod) *corev1.Pod {
		if pod != nil {
			pod = pod.DeepCopy()
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, c)
		}
		return pod
	}
	rec.Pod, rec.Desired = with(rec.Pod), with(rec.Desired)
	if err := w.save(w.a.records.Put, rec); err != nil {
		return err
	}
	w.nudge()
	return nil
}

// exitGivenUp is the exit code of a container that was given up. It is the kubelet's.
const exitGivenUp = 128

// GiveUpEphemeral makes an ephemeral container that has not started count as ended.
func (a *Agent) GiveUpEphemeral(uid, name, message string) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	rec.giveUp(name, message)
	if err := w.save(w.a.records.Put, rec); err != nil {
		return err
	}
	w.nudge()
	return nil
}

// giveUp makes an ephemeral container count as ended, unless its status is known already.
func (rec *record) giveUp(name, message string) {
	refused := map[string]podplan.Failure{name: {At: time.Now(), Message: message, ExitCode: exitGivenUp}}
	maps.Copy(refused, rec.Refused)
	rec.Refused = refused
}
