package api

import (
	"strings"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest/podspec"
)

// waitsFor returns what a pod waits for until it is ready, in the order in which that must happen.
// It is empty for a pod that is ready, has ended, or should not run.
func waitsFor(p agent.Pod) (what []string) {
	st := p.Status
	switch {
	case p.Want != podplan.Run || st.Ready || st.Phase != podplan.PhasePending && st.Phase != podplan.PhaseRunning:
		return nil
	case strings.HasPrefix(st.Reason, "OutOf"):
		return []string{"room on the node"}
	case st.Reason == podplan.ReasonPort:
		what = append(what, "a host port that is in use")
	case !st.SandboxReady:
		what = append(what, "its sandbox and network")
	}
	for _, pull := range p.Pulls {
		what = append(what, "image "+pull.Ref+", which is being pulled")
	}
	for _, c := range st.Containers {
		if c.Init && st.Initialized {
			continue // sidecars included: it doesn't decide whether the pod is ready
		}
		one := containerWaitsFor(c, c.Init && !podspec.HasSidecar(&p.Manifest.Spec, c.Name))
		if one == "" && c.State == podplan.Waiting && len(what) == 0 {
			one = "the start of container " + c.Name
		}
		if one != "" {
			what = append(what, one)
		}
		if c.Init && (one != "" || c.State == podplan.Waiting) {
			break // the next ones wait for it
		}
	}
	return what
}

// containerWaitsFor returns what a container waits for, or what of it the pod waits for. It is
// empty if that is nothing, or only what the whole pod waits for.
func containerWaitsFor(c podplan.ContainerStatus, mustEnd bool) string {
	because := ""
	if c.Message != "" {
		because = ": " + c.Message
	}
	switch {
	case c.State == podplan.Running && mustEnd:
		return "the end of init container " + c.Name
	case c.State == podplan.Running && !c.Up:
		return "the startup probe of container " + c.Name + because
	case c.State == podplan.Running && !c.Ready && !c.Init:
		return "the readiness probe of container " + c.Name + because
	case c.State == podplan.Terminated && mustEnd && c.ExitCode != 0, c.Reason == crashLoop:
		return "the next start of container " + c.Name
	case c.State == podplan.Waiting && strings.Contains(c.Reason, "Image"):
		return "image " + c.Image + " of container " + c.Name
	case c.State == podplan.Waiting && c.Message != "":
		return "container " + c.Name + because
	}
	return ""
}
