package podplan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ruleFor returns the action of the container's first rule that matches an exit code, or "".
func ruleFor(c *corev1.Container, exitCode int) corev1.ContainerRestartRuleAction {
	if c == nil || c.RestartPolicy == nil { // without a policy there are no rules
		return ""
	}
	for _, rule := range c.RestartPolicyRules {
		if on := rule.ExitCodes; on != nil && slices.Contains(on.Values, int32(exitCode)) == (on.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return rule.Action
		}
	}
	return ""
}

// policyOf returns the restartPolicy of a container: its own, or else the pod's.
func (v *view) policyOf(c *corev1.Container) corev1.RestartPolicy {
	if c != nil && c.RestartPolicy != nil {
		return corev1.RestartPolicy(*c.RestartPolicy)
	}
	return v.Pod.Spec.RestartPolicy
}

// shouldRestart reports whether a container restarts after this run. Rules come first. Like in
// kubelet, a run that was stopped for its health or because it is outdated restarts unless the
// policy is Never, whatever its exit code.
func (v *view) shouldRestart(run Container) bool {
	c := v.container(run.Name)
	if run.State == ContainerExited && ruleFor(c, run.ExitCode) != "" {
		return true
	}
	switch v.policyOf(c) {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return !succeeded(run) || run.Health.MustStop() || run.Outdated
	}
	return true
}

// container returns the definition of a container, or nil.
func (v *view) container(name string) *corev1.Container {
	for _, c := range v.allContainers() {
		if c.name == name {
			return c.Container
		}
	}
	return nil
}

// restartAll carries out the rule by which the exit of one container restarts all of them in the
// same sandbox, from the first init container on. It reports whether that is in progress, so that
// nothing may start.
func (p *planner) restartAll() bool {
	var left []Container
	for _, c := range p.o.Containers {
		if live(c) && c.Attempt < p.FirstRuns[c.Name] {
			left = append(left, c)
		}
	}
	if len(left) > 0 {
		p.stopInOrder(left, func(c Container) { p.stopWithin(c, p.now, 0) })
		return true
	}
	for _, c := range p.allContainers() {
		run, ok := p.inCurrentSandbox(c.name)
		if !ok || run.State != ContainerExited || ruleFor(c.Container, run.ExitCode) != corev1.ContainerRestartRuleActionRestartAllContainers {
			continue
		}
		if len(p.o.Starting) == 0 { // otherwise one of them would get a run that isn't numbered yet
			p.do(RestartAll{Container: c.name, FirstRuns: p.nextRuns()})
		}
		return true
	}
	return false
}

// nextRuns returns the attempt that follows all runs of each container that has run.
func (p *planner) nextRuns() map[string]uint32 {
	out := map[string]uint32{}
	for _, c := range p.allContainers() {
		for _, run := range p.runs[c.name] {
			out[c.name] = max(out[c.name], run.Attempt+1)
		}
	}
	return out
}
