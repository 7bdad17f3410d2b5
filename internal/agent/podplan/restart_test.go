package podplan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestContainerPolicies has containers with their own restartPolicy and rules.
func TestContainerPolicies(t *testing.T) {
	t.Parallel()
	for _, c := range []planCase{
		{name: "Never in a pod that restarts", containers: "a=Never b", observed: "sb0 a.0:exit=1@5 b.0:run", now: 6, status: "Running a=Terminated/Error b=Running"},
		{name: "all Never in a pod that restarts", containers: "a=Never b=Never", observed: "sb0 a.0:exit=0@5 b.0:exit=0@6", now: 6, actions: "stop:sb0", status: "Succeeded(Completed) a=Terminated/Completed b=Terminated/Completed"},
		{name: "all Never, one failed", containers: "a=Never b=OnFailure", observed: "sb0 a.0:exit=3@5 b.0:exit=0@6", now: 6, actions: "stop:sb0", status: "Failed(Error) a=Terminated/Error b=Terminated/Completed"},
		{name: "Always in a pod that never restarts", policy: "Never", containers: "a=Always b", observed: "sb0 a.0:exit=0@5 b.0:exit=0@5", now: 6, actions: "start:a.1@sb0"},
		{name: "OnFailure in a pod that never restarts", policy: "Never", containers: "a=OnFailure b", observed: "sb0 a.0:exit=1@5 b.0:exit=0@5", now: 6, actions: "start:a.1@sb0"},
		{name: "a rule restarts", policy: "Never", containers: "a=Never+42:Restart b", observed: "sb0 a.0:exit=42@5 b.0:run", now: 6, actions: "start:a.1@sb0"},
		{name: "no rule matches", policy: "Never", containers: "a=Never+42:Restart b", observed: "sb0 a.0:exit=41@5 b.0:run", now: 6, status: "Running a=Terminated/Error b=Running"},
		{name: "in a new sandbox", policy: "Never", containers: "a=Always b", observed: "sb0:stopped a.0:exit=137@5 b.0:exit=0@4", now: 6, actions: "sandbox+1"},
		{name: "only the one that restarts", policy: "Never", containers: "a=Always b", observed: "sb0:stopped a.0:exit=137@5 b.0:exit=0@4 sb1", now: 6, actions: "start:a.1@sb1"},
		{name: "unhealthy and Never", containers: "a=Never b", observed: "sb0 a.0:exit=0@5 b.0:run", now: 6, change: func(_ *Spec, o *Observed) { o.Containers[0].Health.Liveness = Failing }},
		{name: "program not found, Never", containers: "a=Never b", observed: "sb0 b.0:run", now: 5, change: func(_ *Spec, o *Observed) { o.StartFailures["a"] = Failure{At: at(5), ExitCode: 127} }, status: "Running a=Terminated/StartError b=Running"},
		{name: "program not found, with a rule", containers: "a=Never+127:Restart b", observed: "sb0 b.0:run", now: 15, change: func(_ *Spec, o *Observed) { o.StartFailures["a"] = Failure{At: at(5), ExitCode: 127} }, actions: "start:a.0@sb0"},

		{name: "init container, Never", containers: "i:x=Never a", observed: "sb0 x.0:exit=1@5", now: 6, actions: "stop:sb0", status: "Failed(Init:Error) x=Terminated/Error a=Waiting/PodInitializing"},
		{name: "init container, OnFailure", policy: "Never", containers: "i:x=OnFailure a", observed: "sb0 x.0:exit=1@5", now: 6, actions: "start:x.1@sb0"},
		{name: "init container, OnFailure, done", policy: "Never", containers: "i:x=OnFailure a", observed: "sb0 x.0:exit=0@5", now: 6, actions: "start:a.0@sb0"},
		{name: "init container, a rule", policy: "Never", containers: "i:x=Never+7:Restart a", observed: "sb0 x.0:exit=7@5", now: 6, actions: "start:x.1@sb0"},
		{name: "init container, a rule for its success", containers: "i:x=Never+0:Restart a", observed: "sb0 x.0:exit=0@5", now: 6, actions: "start:a.0@sb0"},
	} {
		c.check(t)
	}
}

// TestRestartAllContainers follows a pod of which one container restarts all.
func TestRestartAllContainers(t *testing.T) {
	t.Parallel()
	const containers, runs = "s:p i:x a=Never+9:RestartAllContainers b=Never", "sb0 p.0:run x.0:exit=0@1 "
	decided := func(s *Spec, _ *Observed) {
		s.FirstRuns = map[string]uint32{"p": 1, "x": 1, "a": 1, "b": 1}
	}
	for _, c := range []planCase{
		{name: "another code", policy: "Never", containers: containers, observed: runs + "a.0:exit=8@5 b.0:run", now: 6, status: "Running p=Running x=Terminated/Completed a=Terminated/Error b=Running"},
		{name: "exits", policy: "Never", containers: containers, observed: runs + "a.0:exit=9@5 b.0:run", now: 6, actions: "all:a/map[a:1 b:1 p:1 x:1]"},
		{name: "waits for a start", policy: "Never", containers: containers, observed: runs + "a.0:exit=9@5 starting:b", now: 6},
		{name: "attempts continue", policy: "Never", containers: containers, observed: runs + "a.4:exit=9@5 b.2:exit=0@3", now: 6, actions: "all:a/map[a:5 b:3 p:1 x:1]"},
		{name: "kills the containers", policy: "Never", containers: containers, observed: runs + "a.0:exit=9@5 b.0:run", now: 6, change: decided, actions: "stop:b.0/0s"},
		{name: "then the sidecars", policy: "Never", containers: containers, observed: runs + "a.0:exit=9@5 b.0:exit=137@6", now: 6, change: decided, actions: "stop:p.0/0s",
			status: "Pending(Init:0/2) p=Waiting/PodInitializing x=Waiting/PodInitializing a=Waiting/PodInitializing b=Waiting/PodInitializing"},
		{name: "then starts from scratch", policy: "Never", containers: containers, observed: "sb0 p.0:exit=137@6 x.0:exit=0@1 a.0:exit=9@5 b.0:exit=137@6", now: 6, change: decided, actions: "start:p.1@sb0"},
		{name: "init containers again", policy: "Never", containers: containers, observed: "sb0 p.0:exit=137@6 p.1:run x.0:exit=0@1 a.0:exit=9@5 b.0:exit=137@6", now: 6, change: decided, actions: "start:x.1@sb0"},
		{name: "containers again", policy: "Never", containers: containers, observed: "sb0 p.0:exit=137@6 p.1:run x.0:exit=0@1 x.1:exit=0@7 a.0:exit=9@5 b.0:exit=137@6", now: 7, change: decided, actions: "start:a.1@sb0 start:b.1@sb0"},
		{name: "one of them again", policy: "Never", containers: containers, observed: "sb0 p.0:exit=137@6 p.1:run x.0:exit=0@1 x.1:exit=0@7 a.0:exit=9@5 a.1:run b.0:exit=137@6", now: 7, change: decided, actions: "start:b.1@sb0"},
		{name: "and again", policy: "Never", containers: containers, observed: "sb0 p.0:exit=137@6 p.1:run x.1:exit=0@7 a.1:exit=9@8 b.1:run", now: 8, change: decided, actions: "all:a/map[a:2 b:2 p:2 x:2]"},
		{name: "by an init container", containers: "i:x=Never+9:RestartAllContainers a", observed: "sb0 x.0:exit=9@5", now: 6, actions: "all:x/map[x:1]"},
		{name: "by a sidecar", containers: "s:p+9:RestartAllContainers a", observed: "sb0 p.0:exit=9@5 a.0:run", now: 6, actions: "all:p/map[a:1 p:1]"},
		{name: "not while it is stopped", policy: "Never", containers: containers, observed: runs + "a.0:exit=9@5 b.0:run", now: 6, change: func(s *Spec, _ *Observed) { s.Want, s.Since = Stop, at(6) }, actions: "stop:b.0/30s"},
	} {
		c.check(t)
	}
	s := makeSpec(t, "Never", containers)
	decided(&s, nil)
	d := Plan(s, observe(t, s.Pod, runs+"a.4:exit=9@5 b.0:run"), at(6))
	if got := d.Status.Containers[3].Restarts; got != 0 {
		t.Errorf("b has %d restarts", got)
	}
	s.FirstRuns["a"] = 5
	if got := Plan(s, observe(t, s.Pod, runs+"a.4:exit=9@5 b.0:run"), at(6)).Status.Containers[2].Restarts; got != 4 {
		t.Errorf("a has %d restarts while it waits, want those of before", got)
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	rule := func(operator corev1.ContainerRestartRuleOnExitCodesOperator, action corev1.ContainerRestartRuleAction, values ...int32) corev1.ContainerRestartRule {
		return corev1.ContainerRestartRule{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: operator, Values: values}}
	}
	c := &corev1.Container{RestartPolicy: new(corev1.ContainerRestartPolicyNever), RestartPolicyRules: []corev1.ContainerRestartRule{
		rule("In", "RestartAllContainers", 3, 4), rule("NotIn", "Restart", 0, 5), rule("In", "RestartAllContainers", 6),
	}}
	for code, want := range map[int]corev1.ContainerRestartRuleAction{0: "", 3: "RestartAllContainers", 4: "RestartAllContainers", 5: "", 6: "Restart", 137: "Restart"} {
		if got := ruleFor(c, code); got != want {
			t.Errorf("exit code %d: %q, want %q", code, got, want)
		}
	}
	c.RestartPolicy = nil
	if got := ruleFor(c, 3); got != "" {
		t.Errorf("without a policy: %q", got)
	}
}
