package podplan

import (
	"cmp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestEphemeral checks that ephemeral containers start once, as soon as there is a sandbox, never
// restart, and don't affect the pod's outcome.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	debug := func(more func(*Spec, *Observed)) func(*Spec, *Observed) {
		return func(s *Spec, o *Observed) {
			s.Pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "img-e:1", ImagePullPolicy: corev1.PullIfNotPresent}}}
			o.Images["img-e:1"] = Image{State: ImagePresent}
			if more != nil {
				more(s, o)
			}
		}
	}
	for _, c := range []struct {
		planCase
		ephemeral string
	}{
		{planCase{name: "is started", containers: "a", observed: "sb0 a.0:run", actions: "start:e.0@sb0", status: "Running ready a=Running"}, "Waiting/ContainerCreating"},
		{planCase{name: "beside init containers", containers: "i:x a", observed: "sb0 x.0:run", actions: "start:e.0@sb0"}, "Waiting/PodInitializing"},
		{planCase{name: "waits for a sandbox", containers: "a", actions: "sandbox+0"}, "Waiting/ContainerCreating"},
		{planCase{name: "runs", containers: "a", observed: "sb0 a.0:run e.0:run", status: "Running ready a=Running"}, "Running/"},
		{planCase{name: "has ended", containers: "a", observed: "sb0 a.0:run e.0:exit=3@5", now: 900, status: "Running ready a=Running"}, "Terminated/Error"},
		{planCase{name: "does not run in another sandbox", containers: "a", observed: "sb0:stopped e.0:exit=3@5 sb1 a.1:run", now: 900, status: "Running ready a=Running"}, "Terminated/Error"},
		{planCase{name: "its image is absent", containers: "a", observed: "sb0 a.0:run", change: func(_ *Spec, o *Observed) { o.Images["img-e:1"] = Image{} }, actions: "pull:e"}, "Waiting/ContainerCreating"},
		{planCase{name: "program not found", containers: "a", observed: "sb0 a.0:run", now: 900, change: func(_ *Spec, o *Observed) {
			o.StartFailures["e"] = Failure{At: at(5), ExitCode: 127, Message: "no such file"}
		}}, "Terminated/StartError"},
		{planCase{name: "waits after a failed start", containers: "a", observed: "sb0 a.0:run", now: 5, change: func(_ *Spec, o *Observed) {
			o.StartFailures["e"] = Failure{At: at(5), Message: "busy"}
		}, next: 15}, "Waiting/CreateContainerError"},
		{planCase{name: "pod ends without it", policy: "Never", containers: "a", observed: "sb0 a.0:exit=0@5 e.0:run", now: 6, actions: "stop:e.0/29s"}, "Running/"},
		{planCase{name: "ends with the pod", containers: "s:p a", observed: "sb0 p.0:run a.0:run e.0:run", now: 10, change: func(s *Spec, _ *Observed) { s.Want, s.Since = Stop, at(10) }, actions: "stop:a.0/30s stop:e.0/30s"}, "Running/"},
	} {
		more := c.change
		c.change = debug(more)
		c.check(t)
		s := makeSpec(t, cmp.Or(c.policy, "Always"), c.containers)
		o := observe(t, s.Pod, c.observed)
		c.change(&s, &o)
		e := Plan(s, o, at(c.now)).Status.Ephemeral[0]
		if got := string(e.State) + "/" + e.Reason; got != c.ephemeral || e.Ready {
			t.Errorf("%s: container is %s, ready %t, want %s", c.name, got, e.Ready, c.ephemeral)
		}
	}
}

// TestEphemeralIsKept checks that the record of an ephemeral container is kept. Otherwise it would
// start again.
func TestEphemeralIsKept(t *testing.T) {
	t.Parallel()
	s := makeSpec(t, "Always", "a")
	o := observe(t, s.Pod, "sb0 a.0:run e.0:exit=0@5")
	if got := show(Plan(s, o, at(6)).Actions); got != "remove:e.0" {
		t.Errorf("container that isn't in the spec: actions %q", got)
	}
	s.Pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}}
	if got := show(Plan(s, o, at(6)).Actions); strings.Contains(got, "e") {
		t.Errorf("container that is in the spec: actions %q", got)
	}
}
