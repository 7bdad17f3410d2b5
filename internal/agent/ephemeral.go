package agent

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
)

// aim has an ephemeral container see the processes of the one that it names, which
// must run; of any other container it changes nothing.
func (a *Agent) aim(config *runtimeapi.ContainerConfig, pod *corev1.Pod, sandbox string) error {
	ephemeral := pod.Spec.EphemeralContainers
	i := slices.IndexFunc(ephemeral, func(c corev1.EphemeralContainer) bool { return c.Name == config.GetMetadata().GetName() })
	if i < 0 || ephemeral[i].TargetContainerName == "" {
		return nil
	}
	target := ephemeral[i].TargetContainerName
	runs := a.cfg.Containers.List(sandbox)
	at := slices.IndexFunc(runs, func(st container.Status) bool {
		return st.Name() == target && view.Container(st) == podplan.ContainerRunning
	})
	if at < 0 {
		return fmt.Errorf("container %q: its target, container %q, doesn't run", ephemeral[i].Name, target)
	}
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	options.Pid, options.TargetId = runtimeapi.NamespaceMode_TARGET, runs[at].ID
	return nil
}

// refuse notes for good that the program of a container can't be started, if that
// is an ephemeral one: it has ended by that, and isn't tried again. The caller
// holds w.mu.
func refuse(w *worker, name string, f podplan.Failure) {
	if f.ExitCode == 0 || !slices.ContainsFunc(w.rec.Pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name }) {
		return
	}
	rec := w.rec
	rec.Refused = map[string]podplan.Failure{name: f}
	maps.Copy(rec.Refused, w.rec.Refused)
	if err := w.a.records.Put(string(rec.Pod.UID), rec); err != nil {
		w.a.cfg.Log.Error("agent: an ephemeral container will be tried again", "pod", nameOf(rec.Pod), "container", name, "error", err)
		return
	}
	w.rec = rec
}
