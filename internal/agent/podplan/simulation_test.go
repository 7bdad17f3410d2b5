package podplan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/podspec"
)

// simulation simulates a node with one pod, on which anything may fail at any time. It carries out
// the actions of Plan and checks them against its own implementation of the rules.
type simulation struct {
	t    testing.TB
	r    *rand.Rand
	spec Spec
	o    Observed
	now  time.Time
	// events are future events, the next one first.
	events []event
	// faultless turns faults off.
	faultless bool
	// ends has the consecutive exits of each container that count for its backoff.
	ends map[string]end
	// log of the events, for failure messages.
	log   []string
	ids   int
	steps int
}

type event struct {
	at   time.Time
	what string
	do   func()
	// lost tells that a restart of the daemon drops the event.
	lost bool
}

type end struct {
	count int
	last  time.Time
}

func newSimulation(t testing.TB, seed uint64) *simulation {
	w := &simulation{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: start, ends: map[string]end{}}
	policies := []string{"Always", "OnFailure", "Never"}
	pods := []string{"a", "a b c", "i:x a", "i:x i:z a b", "s:p a", "s:p s:q a b", "s:p i:x s:q i:z a b", "i:x s:p a"}
	w.spec = makeSpec(t, policies[w.r.IntN(len(policies))], pods[w.r.IntN(len(pods))])
	for _, c := range w.containers() {
		if w.chance(4) {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
	w.choosePolicies()
	if w.chance(5) {
		w.spec.Pod.Spec.ActiveDeadlineSeconds = new(int64(w.r.IntN(2000) + 1))
	}
	w.o = Observed{Images: map[string]Image{}, Starting: map[string]bool{}, StartFailures: map[string]Failure{}}
	return w
}

// choosePolicies gives some containers their own policy and a rule for exit code 1.
func (w *simulation) choosePolicies() {
	for _, c := range w.containers() {
		if !podspec.IsSidecar(c) {
			if !w.chance(4) {
				continue
			}
			policies := []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever}
			if w.isInit(c.Name) {
				policies = policies[1:]
			}
			c.RestartPolicy = new(policies[w.r.IntN(len(policies))])
		}
		if action := w.r.IntN(4); action < 2 {
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action:    []corev1.ContainerRestartRuleAction{corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers}[action],
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
			}}
		}
	}
}

// restarts reports whether a container restarts after an exit with the code.
func (w *simulation) restarts(name string, code int) bool {
	c := w.specOf(name)
	policy := string(w.spec.Pod.Spec.RestartPolicy)
	if c.RestartPolicy != nil {
		policy = string(*c.RestartPolicy)
	}
	return len(c.RestartPolicyRules) > 0 && code == 1 || policy == "Always" || policy == "OnFailure" && code != 0
}

func (w *simulation) containers() []*corev1.Container {
	var out []*corev1.Container
	for i := range w.spec.Pod.Spec.InitContainers {
		out = append(out, &w.spec.Pod.Spec.InitContainers[i])
	}
	for i := range w.spec.Pod.Spec.Containers {
		out = append(out, &w.spec.Pod.Spec.Containers[i])
	}
	return out
}

// chance returns true once in n times, and never while faultless.
func (w *simulation) chance(n int) bool { return !w.faultless && w.r.IntN(n) == 0 }

func (w *simulation) soon(seconds int) time.Time {
	return w.now.Add(time.Duration(w.r.Int64N(int64(seconds)*int64(time.Second))) + 1)
}

func (w *simulation) schedule(at time.Time, lost bool, what string, do func()) {
	w.events = append(w.events, event{at, what, do, lost})
	slices.SortStableFunc(w.events, func(a, b event) int { return a.at.Compare(b.at) })
}

func (w *simulation) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%9.1f ", w.now.Sub(start).Seconds())+fmt.Sprintf(format, args...))
}

func (w *simulation) fail(format string, args ...any) {
	w.t.Helper()
	tail := w.log[max(0, len(w.log)-60):]
	w.t.Fatalf("%s\npod: %s %s\n%s", fmt.Sprintf(format, args...), w.spec.Pod.Spec.RestartPolicy, w.names(), strings.Join(tail, "\n"))
}

func (w *simulation) names() string {
	var out []string
	for _, c := range w.containers() {
		name := c.Name
		if podspec.IsSidecar(c) {
			name = "s:" + name
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func (w *simulation) container(id string) *Container {
	for i := range w.o.Containers {
		if w.o.Containers[i].ID == id {
			return &w.o.Containers[i]
		}
	}
	return nil
}

func (w *simulation) sandbox(id string) *Sandbox {
	for i := range w.o.Sandboxes {
		if w.o.Sandboxes[i].ID == id {
			return &w.o.Sandboxes[i]
		}
	}
	return nil
}

// step makes a decision, carries it out, and runs the next event. It reports whether more can
// happen.
func (w *simulation) step() (Decision, bool) {
	w.steps++
	d := Plan(w.spec, w.o, w.now)
	w.o.Backoffs = d.Backoffs
	if len(d.Actions) > 0 {
		w.note("%s | %s", show(d.Actions), describe(d.Status))
	}
	w.checkStatus(d)
	w.r.Shuffle(len(d.Actions), func(i, j int) { d.Actions[i], d.Actions[j] = d.Actions[j], d.Actions[i] })
	for _, a := range d.Actions {
		w.do(a)
	}
	if !w.faultless && w.injectFault() {
		return d, true
	}
	if !d.Next.IsZero() && !d.Next.After(w.now) {
		w.fail("the next decision is in the past")
	}
	if len(w.events) > 0 && (d.Next.IsZero() || !w.events[0].at.After(d.Next)) {
		e := w.events[0]
		w.events = w.events[1:]
		if e.at.After(w.now) {
			w.now = e.at
		}
		e.do()
		return d, true
	}
	if !d.Next.IsZero() {
		w.now = d.Next
		return d, true
	}
	return d, len(d.Actions) > 0
}

// injectFault sometimes injects a fault, and reports whether it did.
func (w *simulation) injectFault() bool {
	switch w.r.IntN(60) {
	case 0:
		w.restartDaemon()
	case 1:
		for i := range w.o.Sandboxes {
			if s := &w.o.Sandboxes[i]; s.State == SandboxReady {
				s.State = SandboxLost
				w.note("!! sandbox %s is lost", s.ID)
				for j := range w.o.Containers {
					if c := &w.o.Containers[j]; c.Sandbox == s.ID && live(*c) && w.r.IntN(2) == 0 {
						w.exit(c.ID, 137)
					}
				}
			}
		}
	case 2:
		if i := w.r.IntN(len(w.o.Containers) + 1); i < len(w.o.Containers) && w.o.Containers[i].State == ContainerRunning {
			w.o.Containers[i].State = ContainerUnknown
			w.note("!! the state of %s is unknown", w.o.Containers[i].ID)
		}
	default:
		return false
	}
	return true
}

// restartDaemon drops the state that is only in memory.
func (w *simulation) restartDaemon() {
	w.note("!! the daemon restarts")
	for name := range w.o.Starting {
		switch w.r.IntN(3) {
		case 0:
			w.addContainer(name, ContainerCreated)
		case 1:
			w.addContainer(name, ContainerRunning)
		}
	}
	w.events = slices.DeleteFunc(w.events, func(e event) bool { return e.lost })
	w.o.Creating, w.o.Starting = false, map[string]bool{}
	for name, i := range w.o.Images {
		if i.State == ImagePulling {
			i.State = ImageAbsent
		}
		w.o.Images[name] = i
	}
	for i := range w.o.Sandboxes {
		if s := &w.o.Sandboxes[i]; s.State == SandboxStopping {
			s.State = SandboxLost
		}
	}
	for i := range w.o.Containers {
		w.o.Containers[i].Deadline = time.Time{}
	}
	if w.r.IntN(2) == 0 {
		w.o.Backoffs, w.ends = nil, map[string]end{}
		w.o.StartFailures, w.o.SandboxFailure = map[string]Failure{}, Failure{}
	}
}

func (w *simulation) newest(name string) *Container {
	var out *Container
	for i := range w.o.Containers {
		if c := &w.o.Containers[i]; c.Name == name && (out == nil || c.Attempt > out.Attempt) {
			out = c
		}
	}
	return out
}

// addContainer adds the next run of a container to the newest sandbox.
func (w *simulation) addContainer(name string, state ContainerState) *Container {
	sandbox := slices.MaxFunc(w.o.Sandboxes, func(a, b Sandbox) int { return int(a.Attempt) - int(b.Attempt) })
	c := Container{Name: name, Sandbox: sandbox.ID, State: state}
	if last := w.newest(name); last != nil {
		c.Attempt = last.Attempt + 1
	}
	w.ids++
	c.ID = fmt.Sprintf("%s.%d-%d", name, c.Attempt, w.ids)
	if state == ContainerRunning {
		c.Started = w.now
		w.planExit(c.ID, name)
	}
	w.o.Containers = append(w.o.Containers, c)
	w.note("   %s is %s in %s", c.ID, state, c.Sandbox)
	return w.container(c.ID)
}

// planExit schedules the exit of a process, if it is one that exits by itself.
func (w *simulation) planExit(id, name string) {
	spec := w.specOf(name)
	once := w.isInit(name) && !podspec.IsSidecar(spec)
	switch {
	case once && w.faultless:
		w.schedule(w.soon(5), false, "done", func() { w.exit(id, 0) })
	case w.faultless:
	case once:
		w.schedule(w.soon(30), false, "done", func() { w.exit(id, w.r.IntN(3)/2) })
	case w.r.IntN(3) > 0:
		w.schedule(w.soon(1500), false, "done", func() { w.exit(id, w.r.IntN(2)) })
	}
}

func (w *simulation) specOf(name string) *corev1.Container {
	for _, c := range w.containers() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (w *simulation) isInit(name string) bool {
	return slices.ContainsFunc(w.spec.Pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
}

func (w *simulation) exit(id string, code int) {
	c := w.container(id)
	if c == nil || !live(*c) {
		return
	}
	w.now = w.now.Add(1) // no two events have the same time
	c.State, c.ExitCode, c.Finished, c.Deadline = ContainerExited, code, w.now, time.Time{}
	w.note("   %s exits with %d", id, code)
	e := w.ends[c.Name]
	if c.Finished.Sub(c.Started) >= steadyRun {
		e.count = 0
	}
	e.count, e.last = e.count+1, w.now
	if w.isInit(c.Name) && !podspec.IsSidecar(w.specOf(c.Name)) && code == 0 {
		e.count = 0
	}
	w.ends[c.Name] = e
}

func (w *simulation) do(a Action) {
	switch a := a.(type) {
	case CreateSandbox:
		w.createSandbox(a)
	case StopSandbox:
		w.stopSandbox(a)
	case RemoveSandbox:
		w.removeSandbox(a)
	case PullImage:
		w.pullImage(a)
	case StartContainer:
		w.startContainer(a)
	case StopContainer:
		w.stopContainer(a)
	case RestartAll:
		w.restartAll(a)
	case RemoveContainer:
		w.removeContainer(a)
	}
}

// counts reports whether a run is not from before all containers were restarted.
func (w *simulation) counts(c Container) bool { return c.Attempt >= w.spec.FirstRuns[c.Name] }

func (w *simulation) restartAll(a RestartAll) {
	w.t.Helper()
	run := w.newest(a.Container)
	if rules := w.specOf(a.Container).RestartPolicyRules; run == nil || run.State != ContainerExited || run.ExitCode != 1 || !w.counts(*run) ||
		len(rules) == 0 || rules[0].Action != corev1.ContainerRestartRuleActionRestartAllContainers || w.spec.Want != Run {
		w.fail("all containers are restarted for %s", a.Container)
	}
	if w.chance(5) {
		return // the record can't be written
	}
	w.spec.FirstRuns = a.FirstRuns
	for _, c := range w.o.Containers {
		if w.counts(c) && c.State != ContainerCreated {
			w.fail("%s still counts", c.ID)
		}
	}
	clear(w.o.StartFailures)
}

func (w *simulation) createSandbox(a CreateSandbox) {
	if w.o.Creating {
		w.fail("a second sandbox is created at the same time")
	}
	for _, s := range w.o.Sandboxes {
		if s.State != SandboxStopped {
			w.fail("a sandbox is created while %s is %s", s.ID, s.State)
		}
		if s.Attempt >= a.Attempt {
			w.fail("attempt %d is not new", a.Attempt)
		}
	}
	if slices.ContainsFunc(w.o.Containers, live) || w.spec.Want != Run {
		w.fail("a sandbox is created while containers run, or while the pod should not run")
	}
	w.o.Creating = true
	w.schedule(w.soon(4), true, "sandbox", func() {
		w.o.Creating = false
		if w.chance(3) {
			w.o.SandboxFailure = Failure{At: w.now, Message: "no network"}
			w.note("   creation of a sandbox fails")
			return
		}
		s := Sandbox{ID: fmt.Sprintf("sb%d", a.Attempt), Attempt: a.Attempt, State: SandboxReady, IPs: []string{"10.0.0.1"}}
		if w.chance(15) {
			s.IPs = nil
		}
		w.o.Sandboxes = append(w.o.Sandboxes, s)
		w.note("   %s is ready", s.ID)
	})
}

func (w *simulation) stopSandbox(a StopSandbox) {
	s := w.sandbox(a.ID)
	if s == nil || s.State == SandboxStopping || s.State == SandboxStopped {
		w.fail("sandbox %s can't be stopped", a.ID)
	}
	for _, c := range w.o.Containers {
		if c.Sandbox == a.ID && live(c) {
			w.fail("sandbox %s is stopped while %s runs", a.ID, c.ID)
		}
	}
	s.State = SandboxStopping
	w.schedule(w.soon(3), true, "stopped", func() {
		if s := w.sandbox(a.ID); s != nil {
			s.State = SandboxStopped
			if w.chance(4) {
				s.State = SandboxLost
			}
		}
	})
}

func (w *simulation) removeSandbox(a RemoveSandbox) {
	s := w.sandbox(a.ID)
	if s == nil || s.State != SandboxStopped {
		w.fail("sandbox %s can't be removed", a.ID)
	}
	if slices.ContainsFunc(w.o.Containers, func(c Container) bool { return c.Sandbox == a.ID }) {
		w.fail("sandbox %s is removed with containers in it", a.ID)
	}
	if !w.chance(4) {
		w.o.Sandboxes = slices.DeleteFunc(w.o.Sandboxes, func(s Sandbox) bool { return s.ID == a.ID })
	}
}

func (w *simulation) pullImage(a PullImage) {
	i := w.o.Images[a.Image]
	if i.State == ImagePulling {
		w.fail("%s is pulled twice", a.Image)
	}
	i.State = ImagePulling
	w.o.Images[a.Image] = i
	w.schedule(w.soon(20), true, "pulled", func() {
		i := w.o.Images[a.Image]
		i.State, i.Pulled = ImagePresent, w.now
		if w.chance(3) {
			i.State, i.Pulled = ImageAbsent, time.Time{}
			i.Failure = Failure{At: w.now, Message: "no route"}
		}
		w.o.Images[a.Image] = i
	})
}

func (w *simulation) startContainer(a StartContainer) {
	w.checkStart(a)
	w.o.Starting[a.Name] = true
	w.schedule(w.soon(3), true, "start", func() {
		delete(w.o.Starting, a.Name)
		s := w.sandbox(a.Sandbox)
		if w.chance(4) || s == nil || s.State != SandboxReady {
			w.o.StartFailures[a.Name] = Failure{At: w.now, Message: "no such file"}
			w.note("   start of %s fails", a.Name)
			e := w.ends[a.Name]
			w.ends[a.Name] = end{max(e.count+1, 2), w.now}
			if w.chance(2) && s != nil && s.State == SandboxReady {
				w.addContainer(a.Name, ContainerCreated)
			}
			return
		}
		w.addContainer(a.Name, ContainerRunning)
	})
}

// checkStart checks the start of a container.
func (w *simulation) checkStart(a StartContainer) {
	w.t.Helper()
	s := w.sandbox(a.Sandbox)
	if s == nil || s.State != SandboxReady || len(s.IPs) == 0 || w.spec.Want != Run {
		w.fail("%s is started without a usable sandbox", a.Name)
	}
	for _, other := range w.o.Sandboxes {
		if other.ID != a.Sandbox && other.State != SandboxStopped {
			w.fail("%s is started while sandbox %s is %s", a.Name, other.ID, other.State)
		}
	}
	image := w.o.Images[w.specOf(a.Name).Image]
	if w.o.Starting[a.Name] || image.State != ImagePresent {
		w.fail("%s is started twice, or without its image", a.Name)
	}
	for _, c := range w.o.Containers {
		if c.Name != a.Name {
			continue
		}
		if live(c) {
			w.fail("%s would run twice", a.Name)
		}
		if c.Attempt >= a.Attempt {
			w.fail("%s: attempt %d is not new", a.Name, a.Attempt)
		}
		if w.specOf(a.Name).ImagePullPolicy == corev1.PullAlways && image.Pulled.Before(c.Started) {
			w.fail("%s is restarted without a pull", a.Name)
		}
	}
	e := w.ends[a.Name]
	if d := (Backoff{Count: e.count}).containerDelay(); w.now.Sub(e.last) < d {
		w.fail("%s is started %s after consecutive exit %d, want %s", a.Name, w.now.Sub(e.last), e.count, d)
	}
	w.checkOrder(a)
	w.checkPolicy(a)
}

// checkOrder checks that init containers start one after the other, and before the containers.
func (w *simulation) checkOrder(a StartContainer) {
	w.t.Helper()
	if slices.ContainsFunc(w.spec.Pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(w.o.Containers, func(run Container) bool {
			return run.Name == c.Name && run.Sandbox == a.Sandbox && run.State != ContainerCreated && w.counts(run)
		})
	}) {
		if w.isInit(a.Name) && !podspec.IsSidecar(w.specOf(a.Name)) {
			w.fail("init container %s is started after the containers", a.Name)
		}
		return
	}
	for _, c := range w.spec.Pod.Spec.InitContainers {
		if c.Name == a.Name {
			return
		}
		run := w.newest(c.Name)
		if run == nil || run.Sandbox != a.Sandbox || !w.counts(*run) || podspec.IsSidecar(&c) && run.State != ContainerRunning || !podspec.IsSidecar(&c) && !succeeded(*run) {
			w.fail("%s is started before %s has completed", a.Name, c.Name)
		}
	}
}

func (w *simulation) checkPolicy(a StartContainer) {
	w.t.Helper()
	last := w.newest(a.Name)
	if last == nil || last.State != ContainerExited || !w.counts(*last) || w.isInit(a.Name) && last.ExitCode == 0 {
		return
	}
	if !w.restarts(a.Name, last.ExitCode) {
		w.fail("%s is restarted after exit code %d against its policy", a.Name, last.ExitCode)
	}
}

func (w *simulation) stopContainer(a StopContainer) {
	w.t.Helper()
	c := w.container(a.ID)
	if c == nil || !live(*c) || a.Grace < 0 {
		w.fail("%s can't be stopped", a.ID)
	}
	deadline := w.now.Add(a.Grace)
	if !c.Deadline.IsZero() && !deadline.Before(c.Deadline) {
		w.fail("the grace period of %s is extended", a.ID)
	}
	w.checkSidecars(c)
	c.Deadline = deadline
	at := w.now.Add(time.Duration(w.r.Int64N(int64(a.Grace) + 1)))
	if w.r.IntN(2) == 0 {
		at = deadline
	}
	w.schedule(at, false, "stopped", func() { w.exit(a.ID, 143) })
}

// checkSidecars checks that a sidecar is stopped after the containers that it serves.
func (w *simulation) checkSidecars(c *Container) {
	w.t.Helper()
	var order []string
	for i := range w.spec.Pod.Spec.InitContainers {
		if s := &w.spec.Pod.Spec.InitContainers[i]; podspec.IsSidecar(s) {
			order = append(order, s.Name)
		}
	}
	rank := slices.Index(order, c.Name)
	if rank < 0 || c.State == ContainerUnknown {
		return
	}
	for _, other := range w.o.Containers {
		r := slices.Index(order, other.Name)
		if live(other) && other.ID != c.ID && other.Name != c.Name && (r < 0 || r > rank) {
			w.fail("sidecar %s is stopped while %s runs", c.ID, other.ID)
		}
	}
}

func (w *simulation) removeContainer(a RemoveContainer) {
	w.t.Helper()
	c := w.container(a.ID)
	if c == nil || live(*c) {
		w.fail("%s can't be removed", a.ID)
	}
	if w.spec.Want != Remove && c.State == ContainerExited {
		newer := 0
		for _, other := range w.o.Containers {
			if other.Name == c.Name && other.Attempt > c.Attempt {
				newer++
			}
		}
		if newer < keptRuns {
			w.fail("%s is removed too soon", a.ID)
		}
	}
	if !w.chance(5) {
		w.o.Containers = slices.DeleteFunc(w.o.Containers, func(c Container) bool { return c.ID == a.ID })
	}
}

// checkStatus checks the status against the observed state.
func (w *simulation) checkStatus(d Decision) {
	w.t.Helper()
	s := d.Status
	running := slices.ContainsFunc(w.o.Containers, live)
	if ended := s.Phase == PhaseSucceeded || s.Phase == PhaseFailed || s.Phase == PhaseStopped; ended && (running || s.Ready) {
		w.fail("status is %s while containers run", describe(s))
	}
	if s.Ready && s.Phase != PhaseRunning {
		w.fail("ready, but status is %s", describe(s))
	}
	for _, c := range s.Containers {
		if c.State == Waiting && c.Reason == "" || c.State == Terminated && c.Reason == "" {
			w.fail("%s gives no reason for %s", describe(s), c.Name)
		}
	}
	if len(s.Containers) != len(w.containers()) {
		w.fail("%s lacks a container", describe(s))
	}
}

// runUntilIdle makes steps until nothing more can happen. It fails if that doesn't come.
func (w *simulation) runUntilIdle(what string) Decision {
	w.t.Helper()
	for range 3000 {
		if d, more := w.step(); !more {
			return d
		}
	}
	w.fail("it is never idle after it was told to %s", what)
	return Decision{}
}

func (w *simulation) checkIdle(d Decision) {
	w.t.Helper()
	phase := d.Status.Phase
	always := func(c *corev1.Container) bool {
		return w.restarts(c.Name, 0) || w.isInit(c.Name) && w.restarts(c.Name, 2)
	}
	forever := !slices.ContainsFunc(w.containers(), func(c *corev1.Container) bool { return !always(c) })
	switch {
	case phase == PhaseRunning:
		for _, c := range w.spec.Pod.Spec.Containers {
			run := w.newest(c.Name)
			if done := run.State == ContainerExited && !w.restarts(c.Name, run.ExitCode); run.State != ContainerRunning && !done {
				w.fail("idle, but %s doesn't run: %s", c.Name, describe(d.Status))
			}
		}
		if forever && !d.Status.Ready {
			w.fail("idle, but not ready: %s", describe(d.Status))
		}
	case phase == PhaseSucceeded, phase == PhaseFailed:
		if forever && d.Status.Reason != "DeadlineExceeded" {
			w.fail("ended despite its restartPolicy: %s", describe(d.Status))
		}
		w.checkStopped(d)
	default:
		w.fail("idle, but status is %s", describe(d.Status))
	}
}

func (w *simulation) checkStopped(d Decision) {
	w.t.Helper()
	for _, s := range w.o.Sandboxes {
		if s.State != SandboxStopped {
			w.fail("%s, but sandbox %s is %s", describe(d.Status), s.ID, s.State)
		}
	}
}

// TestSimulation runs pods with faults, and some of them also without, until they are idle. Then it
// stops some of them and removes all.
func TestSimulation(t *testing.T) {
	t.Parallel()
	const atLeast = 100_000
	steps := 0
	for seed := uint64(0); steps < atLeast; seed++ {
		w := newSimulation(t, seed)
		w.note("simulation %d", seed)
		for range w.r.IntN(600) {
			if _, more := w.step(); !more && w.r.IntN(20) == 0 {
				break
			}
		}
		if w.r.IntN(2) == 0 {
			w.faultless = true
			w.note("!! no more faults")
			w.checkIdle(w.runUntilIdle("run"))
			w.faultless = false
		}
		if w.r.IntN(2) == 0 {
			w.want(Stop)
			if d := w.runUntilIdle("stop"); d.Status.Phase == PhaseRunning || d.Status.Phase == PhasePending {
				w.fail("stopped, but %s", describe(d.Status))
			} else {
				w.checkStopped(d)
			}
		}
		w.want(Remove)
		if d := w.runUntilIdle("be removed"); !d.Gone || len(w.o.Containers)+len(w.o.Sandboxes) > 0 {
			w.fail("not gone")
		}
		steps += w.steps
	}
	t.Logf("%d steps", steps)
}

// want changes the desired state, while actions are in progress.
func (w *simulation) want(want Want) {
	w.note("!! %s", want)
	w.spec.Want, w.spec.Since = want, w.now
	if w.r.IntN(2) == 0 {
		w.spec.Grace = new(time.Duration(w.r.IntN(40)) * time.Second)
	}
}
