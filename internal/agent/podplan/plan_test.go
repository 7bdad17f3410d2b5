package podplan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns the time that many seconds after start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// makePod returns a pod. Containers are written as NAME, plain init containers as i:NAME, sidecars
// as s:NAME. A container's own policy follows as =POLICY, a rule as +CODE:ACTION.
func makePod(t testing.TB, policy, containers string) *corev1.Pod {
	t.Helper()
	var init, regular []string
	for _, word := range strings.Fields(containers) {
		word, rule, _ := strings.Cut(word, "+")
		word, own, _ := strings.Cut(word, "=")
		kind, name, ok := strings.Cut(word, ":")
		if !ok {
			kind, name = "", word
		}
		if kind == "s" {
			own = "Always"
		}
		c := fmt.Sprintf("name: %s, image: 'img-%s:1'", name, name)
		if own != "" {
			c += ", restartPolicy: " + own
		}
		if code, action, ok := strings.Cut(rule, ":"); ok {
			c += fmt.Sprintf(", restartPolicyRules: [{action: %s, exitCodes: {operator: In, values: [%s]}}]", action, code)
		}
		if kind == "" {
			regular = append(regular, "{"+c+"}")
		} else {
			init = append(init, "{"+c+"}")
		}
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {restartPolicy: %s, initContainers: [%s], containers: [%s]}\n",
		policy, strings.Join(init, ", "), strings.Join(regular, ", "))
	pods, err := manifest.Parse([]byte(text), manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	return &pods.Pods[0]
}

// makeSpec returns the spec of a pod that should run.
func makeSpec(t testing.TB, policy, containers string) Spec {
	return Spec{Pod: makePod(t, policy, containers), Want: Run, Started: start}
}

// observe parses an observed state. Each word is one of
//
//	SANDBOX   sbN (ready), sbN:lost, sbN:stopping, sbN:stopped, sbN:noip
//	CONTAINER NAME.ATTEMPT:run, :created, :unknown, :exit=CODE@FINISHED[-STARTED], :oom@FINISHED; in the sandbox before it
//	OTHER     creating, starting:NAME, pulling:NAME, absent:NAME
//
// Images that aren't mentioned are present.
func observe(t testing.TB, pod *corev1.Pod, words string) Observed {
	t.Helper()
	o := Observed{Images: map[string]Image{}, Starting: map[string]bool{}, StartFailures: map[string]Failure{}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			o.Images[c.Image] = Image{State: ImagePresent}
		}
	}
	sandbox := ""
	for _, word := range strings.Fields(words) {
		head, tail, _ := strings.Cut(word, ":")
		name, attempt, isContainer := strings.Cut(head, ".")
		switch {
		case head == "creating":
			o.Creating = true
		case head == "starting":
			o.Starting[tail] = true
		case head == "pulling":
			o.Images["img-"+tail+":1"] = Image{State: ImagePulling}
		case head == "absent":
			o.Images["img-"+tail+":1"] = Image{State: ImageAbsent}
		case strings.HasPrefix(head, "sb"):
			s := Sandbox{ID: head, State: SandboxReady, IPs: []string{"10.0.0.1"}}
			_, _ = fmt.Sscanf(head, "sb%d", &s.Attempt)
			switch tail {
			case "":
			case "noip":
				s.IPs = nil
			default:
				s.State = SandboxState(tail)
			}
			o.Sandboxes, sandbox = append(o.Sandboxes, s), head
		case isContainer:
			o.Containers = append(o.Containers, makeContainer(t, name, attempt, sandbox, tail))
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return o
}

func makeContainer(t testing.TB, name, attempt, sandbox, state string) Container {
	t.Helper()
	c := Container{ID: name + "." + attempt, Name: name, Sandbox: sandbox}
	if _, err := fmt.Sscanf(attempt, "%d", &c.Attempt); err != nil {
		t.Fatal(err)
	}
	switch {
	case state == "run":
		c.State, c.Started = ContainerRunning, start
	case state == "created":
		c.State = ContainerCreated
	case state == "unknown":
		c.State = ContainerUnknown
	case strings.HasPrefix(state, "oom@"):
		var finished int
		_, _ = fmt.Sscanf(state, "oom@%d", &finished)
		c.State, c.ExitCode, c.OOMKilled, c.Finished, c.Started = ContainerExited, 137, true, at(finished), at(finished)
	default:
		var finished, started int
		n, _ := fmt.Sscanf(state, "exit=%d@%d-%d", &c.ExitCode, &finished, &started)
		if n < 2 {
			t.Fatalf("unknown container state %q", state)
		}
		if n == 2 {
			started = finished
		}
		c.State, c.Started, c.Finished = ContainerExited, at(started), at(finished)
	}
	return c
}

// show formats actions.
func show(actions []Action) string {
	var out []string
	for _, a := range actions {
		switch a := a.(type) {
		case CreateSandbox:
			out = append(out, fmt.Sprintf("sandbox+%d", a.Attempt))
		case StopSandbox:
			out = append(out, "stop:"+a.ID)
		case RemoveSandbox:
			out = append(out, "remove:"+a.ID)
		case PullImage:
			out = append(out, "pull:"+strings.TrimSuffix(strings.TrimPrefix(a.Image, "img-"), ":1"))
		case StartContainer:
			out = append(out, fmt.Sprintf("start:%s.%d@%s", a.Name, a.Attempt, a.Sandbox))
		case StopContainer:
			out = append(out, fmt.Sprintf("stop:%s/%gs", a.ID, a.Grace.Seconds()))
		case RestartAll:
			out = append(out, fmt.Sprintf("all:%s/%v", a.Container, a.FirstRuns))
		case RemoveContainer:
			out = append(out, "remove:"+a.ID)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// describe formats a status.
func describe(s Status) string {
	out := string(s.Phase)
	if s.Reason != "" {
		out += "(" + s.Reason + ")"
	}
	switch {
	case s.Ready:
		out += " ready"
	case s.Serving:
		out += " serving"
	}
	for _, c := range s.Containers {
		out += " " + c.Name + "=" + string(c.State)
		if c.Reason != "" {
			out += "/" + c.Reason
		}
	}
	return out
}

// planCase is a test of one decision. Times are in seconds after start.
type planCase struct {
	name, policy, containers string
	observed                 string
	now                      int
	change                   func(s *Spec, o *Observed)
	actions                  string
	next                     int // 0 means never
	status                   string
}

// imageState gives an image a state, which can't be written as a word.
func imageState(image string, state ImageState) func(*Spec, *Observed) {
	return func(_ *Spec, o *Observed) { o.Images[image] = Image{State: state, Problem: "why"} }
}

// An image that can't be looked up isn't pulled. Its name can only be cured by a change.
func TestImageLookupFailed(t *testing.T) {
	t.Parallel()
	for _, c := range []planCase{
		{name: "malformed name", containers: "a b", observed: "sb0", change: imageState("img-a:1", ImageMisnamed), actions: "start:b.0@sb0",
			status: "Pending(InvalidImageName) a=Waiting/InvalidImageName b=Waiting/ContainerCreating"},
		{name: "malformed name, no sandbox yet", containers: "a", change: imageState("img-a:1", ImageMisnamed), actions: "sandbox+0",
			status: "Pending(InvalidImageName) a=Waiting/InvalidImageName"},
		{name: "ambiguous", containers: "a", observed: "sb0", now: 1, next: 11, change: imageState("img-a:1", ImageUnclear),
			status: "Pending(ImageInspectError) a=Waiting/ImageInspectError"},
	} {
		c.check(t)
	}
	for state, stuck := range map[ImageState]bool{ImageMisnamed: true, ImageUnclear: false} {
		s := makeSpec(t, "Always", "a")
		o := observe(t, s.Pod, "sb0")
		imageState("img-a:1", state)(&s, &o)
		if got := Plan(s, o, at(1)).Status; got.Stuck != stuck || got.Message != "why" {
			t.Errorf("%s: %+v", state, got)
		}
	}
}

func (c planCase) check(t *testing.T) {
	t.Helper()
	if c.policy == "" {
		c.policy = "Always"
	}
	s := makeSpec(t, c.policy, c.containers)
	o := observe(t, s.Pod, c.observed)
	if c.change != nil {
		c.change(&s, &o)
	}
	d := Plan(s, o, at(c.now))
	if got := show(d.Actions); got != c.actions {
		t.Errorf("%s: actions\n got %s\nwant %s", c.name, got, c.actions)
	}
	next := 0
	if !d.Next.IsZero() {
		next = int(d.Next.Sub(start).Seconds())
	}
	if next != c.next {
		t.Errorf("%s: next decision at %d, want %d", c.name, next, c.next)
	}
	if got := describe(d.Status); c.status != "" && got != c.status {
		t.Errorf("%s: status\n got %s\nwant %s", c.name, got, c.status)
	}
}

func TestStartUp(t *testing.T) {
	t.Parallel()
	for _, c := range []planCase{
		{name: "nothing there", containers: "a", actions: "sandbox+0", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating"},
		{name: "no image", containers: "a b", observed: "absent:a absent:b", actions: "pull:a pull:b sandbox+0", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating b=Waiting/ContainerCreating"},
		{name: "sandbox under way", containers: "a", observed: "creating absent:a", actions: "pull:a"},
		{name: "all under way", containers: "a", observed: "creating pulling:a"},
		{name: "sandbox ready", containers: "a b", observed: "sb0", actions: "start:a.0@sb0 start:b.0@sb0", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating b=Waiting/ContainerCreating"},
		{name: "one image missing", containers: "a b", observed: "sb0 pulling:a", actions: "start:b.0@sb0"},
		{name: "starting", containers: "a b", observed: "sb0 starting:a b.0:run", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating b=Running"},
		{name: "running", containers: "a b", observed: "sb0 a.0:run b.0:run", status: "Running ready a=Running b=Running"},
		{name: "a container that never started", containers: "a", observed: "sb0 a.0:created", actions: "remove:a.0"},
		{name: "unknown state", containers: "a", observed: "sb0 a.0:unknown", actions: "stop:a.0/30s", status: "Running a=Running/ContainerStatusUnknown"},
		{name: "an older run still runs", containers: "a", observed: "sb0 a.0:run a.1:exit=1@0", actions: "stop:a.0/30s"},
	} {
		c.check(t)
	}
}

func TestInitContainers(t *testing.T) {
	t.Parallel()
	for _, c := range []planCase{
		{name: "before the sandbox", containers: "i:x i:z a", actions: "sandbox+0",
			status: "Pending(Init:0/2) x=Waiting/PodInitializing z=Waiting/PodInitializing a=Waiting/PodInitializing"},
		{name: "the first", containers: "i:x i:z a", observed: "sb0", actions: "start:x.0@sb0"},
		{name: "the first runs", containers: "i:x i:z a", observed: "sb0 x.0:run", status: "Pending(Init:0/2) x=Running z=Waiting/PodInitializing a=Waiting/PodInitializing"},
		{name: "the second", containers: "i:x i:z a", observed: "sb0 x.0:exit=0@1", now: 1, actions: "start:z.0@sb0",
			status: "Pending(Init:1/2) x=Terminated/Completed z=Waiting/PodInitializing a=Waiting/PodInitializing"},
		{name: "both done", containers: "i:x i:z a", observed: "sb0 x.0:exit=0@1 z.0:exit=0@2", now: 2, actions: "start:a.0@sb0"},
		{name: "all up", containers: "i:x a", observed: "sb0 x.0:exit=0@1 a.0:run", now: 2, status: "Running ready x=Terminated/Completed a=Running"},
		{name: "records lost, but a container has run", containers: "i:x i:z a b", observed: "sb0 a.0:run", actions: "start:b.0@sb0"},
		{name: "failed once", containers: "i:x a", observed: "sb0 x.0:exit=1@1", now: 1, actions: "start:x.1@sb0", status: "Pending(Init:Error) x=Terminated/Error a=Waiting/PodInitializing"},
		{name: "failed twice", containers: "i:x a", observed: "sb0 x.0:exit=1@1 x.1:exit=1@5", now: 5, next: 15,
			status: "Pending(Init:CrashLoopBackOff) x=Waiting/CrashLoopBackOff a=Waiting/PodInitializing"},
		{name: "failed twice, waited", containers: "i:x a", observed: "sb0 x.0:exit=1@1 x.1:exit=1@5", now: 15, actions: "start:x.2@sb0"},
		{name: "failed, OnFailure", policy: "OnFailure", containers: "i:x a", observed: "sb0 x.0:exit=1@1", now: 1, actions: "start:x.1@sb0"},
		{name: "failed, Never", policy: "Never", containers: "i:x a", observed: "sb0 x.0:exit=3@1", now: 1, actions: "stop:sb0",
			status: "Failed(Init:Error) x=Terminated/Error a=Waiting/PodInitializing"},
		{name: "failed, Never, with a sidecar", policy: "Never", containers: "s:p i:x a", observed: "sb0 p.0:run x.0:exit=3@1", now: 2, actions: "stop:p.0/29s"},
		{name: "failed, Never, down", policy: "Never", containers: "i:x a", observed: "sb0:stopped x.0:exit=3@1", now: 9},
		{name: "runs again in a new sandbox", containers: "i:x a", observed: "sb0:stopped x.0:exit=0@1 a.0:exit=1@2 sb1", now: 3, actions: "start:x.1@sb1"},
		{name: "new sandbox, done again", containers: "i:x a", observed: "sb0:stopped x.0:exit=0@1 a.0:exit=1@2 sb1 x.1:exit=0@4", now: 4, actions: "start:a.1@sb1"},
	} {
		c.check(t)
	}
}

func TestSidecars(t *testing.T) {
	t.Parallel()
	for _, c := range []planCase{
		{name: "first", containers: "s:p s:q i:x a", observed: "sb0", actions: "start:p.0@sb0"},
		{name: "second waits for the first", containers: "s:p s:q a", observed: "sb0 starting:p"},
		{name: "second", containers: "s:p s:q i:x a", observed: "sb0 p.0:run", actions: "start:q.0@sb0", status: "Pending(Init:1/3) p=Running q=Waiting/PodInitializing x=Waiting/PodInitializing a=Waiting/PodInitializing"},
		{name: "init container after them", containers: "s:p i:x a", observed: "sb0 p.0:run", actions: "start:x.0@sb0"},
		{name: "containers after them", containers: "s:p i:x a", observed: "sb0 p.0:run x.0:exit=0@1", now: 1, actions: "start:a.0@sb0"},
		{name: "restarted before the next starts", containers: "s:p i:x a", observed: "sb0 p.0:exit=1@1", now: 1, actions: "start:p.1@sb0"},
		{name: "next waits for the restart", containers: "s:p i:x a", observed: "sb0 p.0:exit=1@1 p.1:exit=1@2", now: 2, next: 12},
		{name: "restarted while containers run", containers: "s:p a", observed: "sb0 p.0:exit=0@1 a.0:run", now: 1, actions: "start:p.1@sb0"},
		{name: "restarted whatever the policy", policy: "Never", containers: "s:p a", observed: "sb0 p.0:exit=0@1 a.0:run", now: 1, actions: "start:p.1@sb0"},
		{name: "a container restarts while they wait", containers: "s:p a", observed: "sb0 p.0:exit=1@1 p.1:exit=1@2 a.0:exit=1@2", now: 2, next: 12, actions: "start:a.1@sb0"},
		{name: "pod is not ready without them", containers: "s:p a", observed: "sb0 starting:p a.0:run", status: "Running(PodInitializing) p=Waiting/PodInitializing a=Running"},
		{name: "stopped when all is done", policy: "Never", containers: "s:p s:q a b", observed: "sb0 p.0:run q.0:run a.0:exit=0@5 b.0:exit=1@6", now: 7, actions: "stop:q.0/29s",
			status: "Running p=Running q=Running a=Terminated/Completed b=Terminated/Error"},
		{name: "in reverse order", policy: "Never", containers: "s:p s:q a", observed: "sb0 p.0:run q.0:exit=143@8 a.0:exit=0@5", now: 33, actions: "stop:p.0/2s"},
		{name: "sandbox last", policy: "Never", containers: "s:p a", observed: "sb0 p.0:exit=143@8 a.0:exit=0@5", now: 9, actions: "stop:sb0",
			status: "Succeeded(Completed) p=Terminated/Error a=Terminated/Completed"},
	} {
		c.check(t)
	}
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	for _, c := range []planCase{
		{name: "Always, success", containers: "a", observed: "sb0 a.0:exit=0@5", now: 5, actions: "start:a.1@sb0", status: "Running(Completed) a=Terminated/Completed"},
		{name: "Always, failure", containers: "a", observed: "sb0 a.0:exit=1@5", now: 5, actions: "start:a.1@sb0"},
		{name: "OnFailure, success", policy: "OnFailure", containers: "a b", observed: "sb0 a.0:exit=0@5 b.0:run", now: 5, status: "Running a=Terminated/Completed b=Running"},
		{name: "OnFailure, failure", policy: "OnFailure", containers: "a", observed: "sb0 a.0:exit=2@5", now: 5, actions: "start:a.1@sb0"},
		{name: "OnFailure, all done", policy: "OnFailure", containers: "a b", observed: "sb0 a.0:exit=0@5 b.0:exit=1@4 b.1:exit=0@6", now: 6, actions: "stop:sb0", status: "Succeeded(Completed) a=Terminated/Completed b=Terminated/Completed"},
		{name: "Never, one failed", policy: "Never", containers: "a b", observed: "sb0 a.0:exit=0@5 b.0:exit=7@6", now: 6, actions: "stop:sb0", status: "Failed(Error) a=Terminated/Completed b=Terminated/Error"},
		{name: "Never, out of memory", policy: "Never", containers: "a", observed: "sb0 a.0:oom@5", now: 6, actions: "stop:sb0", status: "Failed(OOMKilled) a=Terminated/OOMKilled"},
		{name: "Never, one left", policy: "Never", containers: "a b", observed: "sb0 a.0:exit=1@5 b.0:run", now: 6, status: "Running a=Terminated/Error b=Running"},
		{name: "Never, one not started yet", policy: "Never", containers: "a b", observed: "sb0 a.0:exit=1@5", now: 6, actions: "start:b.0@sb0"},
		{name: "Never, done and down", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=0@5", now: 60, status: "Succeeded(Completed) a=Terminated/Completed"},
		{name: "second crash waits", containers: "a", observed: "sb0 a.0:exit=1@5 a.1:exit=1@7", now: 8, next: 17, status: "Running(CrashLoopBackOff) a=Waiting/CrashLoopBackOff"},
		{name: "second crash, waited", containers: "a", observed: "sb0 a.0:exit=1@5 a.1:exit=1@7", now: 17, actions: "start:a.2@sb0"},
		{name: "long run resets", containers: "a", observed: "sb0 a.0:exit=1@5 a.1:exit=1@700-100", now: 700, actions: "start:a.2@sb0"},
		{name: "shorter run doesn't reset", containers: "a", observed: "sb0 a.0:exit=1@5 a.1:exit=1@699-100", now: 700, next: 709},
		{name: "old runs are removed", containers: "a", observed: "sb0 a.0:exit=1@1 a.1:exit=1@2 a.2:exit=1@3 a.3:run", now: 99, actions: "remove:a.0 remove:a.1"},
		{name: "runs of containers not in the spec", containers: "a", observed: "sb0 a.0:run z.0:exit=0@1", now: 99, actions: "remove:z.0"},
	} {
		c.check(t)
	}
}

func TestBackoffDelays(t *testing.T) {
	t.Parallel()
	delays := func(f func(Backoff) time.Duration) string {
		var out []string
		for n := range 9 {
			out = append(out, fmt.Sprint(f(Backoff{Count: n}).Seconds()))
		}
		return strings.Join(out, " ")
	}
	for name, c := range map[string][2]string{
		"container": {delays(Backoff.containerDelay), "0 0 10 20 40 80 160 300 300"},
		"image":     {delays(Backoff.imageDelay), "0 10 20 40 80 160 300 300 300"},
		"sandbox":   {delays(Backoff.sandboxDelay), "0 1 2 4 8 16 32 60 60"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %s, want %s", name, c[0], c[1])
		}
	}
	if d := (Backoff{Count: 1 << 40}).containerDelay(); d != maxDelay {
		t.Errorf("after very many failures: %s", d)
	}
}

func TestLostSandbox(t *testing.T) {
	t.Parallel()
	for _, c := range []planCase{
		{name: "lost with processes", containers: "s:p a b", observed: "sb0:lost p.0:run a.0:run b.0:run", now: 9, actions: "stop:a.0/30s stop:b.0/30s"},
		{name: "sidecars after them", containers: "s:p a", observed: "sb0:lost p.0:run a.0:exit=137@8", now: 9, actions: "stop:p.0/30s"},
		{name: "then the sandbox", containers: "a", observed: "sb0:lost a.0:exit=137@8", now: 9, actions: "stop:sb0"},
		{name: "which is stopping", containers: "a", observed: "sb0:stopping a.0:exit=137@8", now: 9},
		{name: "then a new one", containers: "a", observed: "sb0:stopped a.0:exit=137@8", now: 99, actions: "sandbox+1", status: "Running(Error) a=Terminated/Error"},
		{name: "then its containers", containers: "a", observed: "sb0:stopped a.0:exit=137@8 sb1", now: 99, actions: "start:a.1@sb1"},
		{name: "old one removed when empty", containers: "a", observed: "sb0:stopped sb1 a.1:run", now: 99, actions: "remove:sb0"},
		{name: "kept while it has the previous run", containers: "a", observed: "sb0:stopped a.0:exit=137@8 sb1 a.1:run", now: 99},
		{name: "two ready ones", containers: "a", observed: "sb0 a.0:run sb1", now: 99, actions: "stop:a.0/30s"},
		{name: "two ready ones, empty", containers: "a", observed: "sb0 sb1 a.0:run", now: 99, actions: "stop:sb0"},
		{name: "no address", containers: "a", observed: "sb0:noip", now: 99, actions: "stop:sb0"},
		{name: "no address needed", containers: "a", observed: "sb0:noip", change: func(s *Spec, _ *Observed) { s.Pod.Spec.HostNetwork = true }, actions: "start:a.0@sb0"},
		{name: "a start in progress in it", containers: "a", observed: "sb0:lost starting:a"},
		{name: "Never, had run", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=0@8", now: 99, status: "Succeeded(Completed) a=Terminated/Completed"},
		{name: "Never, one had not started", policy: "Never", containers: "a b", observed: "sb0:lost a.0:exit=0@8", now: 99, actions: "stop:sb0",
			status: "Failed(ContainerStatusUnknown) a=Terminated/Completed b=Waiting/ContainerCreating"},
		{name: "Never, none had started", policy: "Never", containers: "a", observed: "sb0:stopped", now: 99, actions: "sandbox+1"},
		{name: "Never, still running", policy: "Never", containers: "a b", observed: "sb0:lost a.0:run", now: 99, actions: "stop:a.0/30s"},
		{name: "OnFailure, done stays done", policy: "OnFailure", containers: "a b", observed: "sb0:stopped a.0:exit=0@8 b.0:exit=1@8 sb1", now: 99, actions: "start:b.1@sb1"},
		{name: "OnFailure, all done", policy: "OnFailure", containers: "a", observed: "sb0:stopped a.0:exit=0@8", now: 99, status: "Succeeded(Completed) a=Terminated/Completed"},
	} {
		c.check(t)
	}
}

func TestSandboxFailures(t *testing.T) {
	t.Parallel()
	failed := func(count, last, failure int) func(*Spec, *Observed) {
		return func(_ *Spec, o *Observed) {
			o.Backoffs = Backoffs{keySandbox: {Count: count, Last: at(last)}}
			o.SandboxFailure = Failure{At: at(failure), Message: "no network"}
		}
	}
	for _, c := range []planCase{
		{name: "failed once", containers: "a", now: 5, change: failed(1, 4, 5), next: 6, status: "Pending(CreatePodSandboxError) a=Waiting/ContainerCreating"},
		{name: "waited", containers: "a", now: 6, change: failed(1, 4, 5), actions: "sandbox+0"},
		{name: "failed slowly", containers: "a", now: 100, change: failed(3, 4, 99), next: 103},
		{name: "failed often", containers: "a", now: 10, change: failed(9, 4, 5), next: 65},
		{name: "port taken for long", containers: "a", now: 10, change: func(s *Spec, o *Observed) {
			failed(9, 4, 8)(s, o)
			o.SandboxFailure.Reason = ReasonPort
		}, next: 13, status: "Pending(PortInUse) a=Waiting/ContainerCreating"},
		{name: "attempts continue", containers: "a", observed: "sb4:stopped", now: 10, change: failed(1, 4, 5), actions: "sandbox+5"},
		{name: "lost soon after its creation", containers: "a", observed: "sb0:stopped", now: 5, change: failed(3, 4, 0), next: 8},
		{name: "lost later", containers: "a", observed: "sb0:stopped", now: 64, change: failed(3, 4, 0), actions: "sandbox+1"},
	} {
		c.check(t)
	}
	s := makeSpec(t, "Always", "a")
	d := Plan(s, observe(t, s.Pod, ""), at(1))
	if got := d.Backoffs[keySandbox]; got != (Backoff{Count: 1, Last: at(1)}) {
		t.Errorf("the first creation is not counted: %+v", got)
	}
	later := observe(t, s.Pod, "sb0:stopped")
	later.Backoffs = Backoffs{keySandbox: {Count: 7, Last: at(1)}}
	if got := Plan(s, later, at(100)).Backoffs[keySandbox]; got != (Backoff{Count: 1, Last: at(100)}) {
		t.Errorf("a sandbox that lasted doesn't reset the count: %+v", got)
	}
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	failed := func(reason string, second int) func(*Spec, *Observed) {
		return func(_ *Spec, o *Observed) {
			o.StartFailures["a"] = Failure{At: at(second), Reason: reason, Message: "no such user"}
		}
	}
	refused := func(name string, second int) func(*Spec, *Observed) {
		return func(_ *Spec, o *Observed) { o.StartFailures[name] = Failure{At: at(second), ExitCode: 127} }
	}
	for _, c := range []planCase{
		{name: "waits", containers: "a b", observed: "sb0 b.0:run", now: 5, change: failed("", 5), next: 15, status: "Pending(CreateContainerError) a=Waiting/CreateContainerError b=Running"},
		{name: "with its reason", containers: "a", observed: "sb0", now: 5, change: failed("CreateContainerConfigError", 5), next: 15, status: "Pending(CreateContainerConfigError) a=Waiting/CreateContainerConfigError"},
		{name: "by a volume", containers: "a", observed: "sb0", now: 5, change: failed(ReasonMount, 5), next: 15, status: "Pending(FailedMount) a=Waiting/ContainerCreating"},
		{name: "by a volume, init container", containers: "i:x a", observed: "sb0", now: 5, change: func(_ *Spec, o *Observed) {
			o.StartFailures["x"] = Failure{At: at(5), Reason: ReasonMount, Message: "no such claim"}
		}, next: 15, status: "Pending(Init:FailedMount) x=Waiting/PodInitializing a=Waiting/PodInitializing"},
		{name: "waited", containers: "a", observed: "sb0", now: 15, change: failed("", 5), actions: "start:a.0@sb0"},
		{name: "after a crash", containers: "a", observed: "sb0 a.0:exit=1@4", now: 5, change: failed("", 5), next: 15},
		{name: "before a crash", containers: "a", observed: "sb0 a.0:exit=1@20", now: 20, change: func(_ *Spec, o *Observed) {
			o.StartFailures["a"] = Failure{At: at(5)}
			o.Backoffs = Backoffs{keyContainer("a"): {Count: 2, Last: at(5)}}
		}, next: 40},
		{name: "Never, tries again", policy: "Never", containers: "a", observed: "sb0", now: 15, change: failed("", 5), actions: "start:a.0@sb0"},
		{name: "program not found", containers: "a", observed: "sb0", now: 5, change: refused("a", 5), next: 15, status: "Pending(CreateContainerError) a=Waiting/CreateContainerError"},
		{name: "program not found, Never", policy: "Never", containers: "a", observed: "sb0", now: 5, change: refused("a", 5), actions: "stop:sb0", status: "Failed(StartError) a=Terminated/StartError"},
		{name: "program not found, Never, another runs", policy: "Never", containers: "a b", observed: "sb0 b.0:run", now: 99, change: refused("a", 5), status: "Running a=Terminated/StartError b=Running"},
		{name: "program not found, Never, another has ended", policy: "Never", containers: "a b", observed: "sb0 b.0:exit=0@9", now: 9, change: refused("a", 5), actions: "stop:sb0", status: "Failed(StartError) a=Terminated/StartError b=Terminated/Completed"},
		{name: "program not found, Never, init container", policy: "Never", containers: "i:x a", observed: "sb0", now: 5, change: refused("x", 5), actions: "stop:sb0", status: "Failed(Init:StartError) x=Terminated/StartError a=Waiting/PodInitializing"},
	} {
		c.check(t)
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	policy := func(p corev1.PullPolicy, f func(i *Image)) func(*Spec, *Observed) {
		return func(s *Spec, o *Observed) {
			s.Pod.Spec.Containers[0].ImagePullPolicy = p
			i := o.Images["img-a:1"]
			if f != nil {
				f(&i)
			}
			o.Images["img-a:1"] = i
		}
	}
	failure := func(second int, reason string) func(*Image) {
		return func(i *Image) { i.Failure = Failure{At: at(second), Reason: reason, Message: "not found"} }
	}
	for _, c := range []planCase{
		{name: "IfNotPresent, absent", containers: "a", observed: "sb0 absent:a", actions: "pull:a", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating"},
		{name: "IfNotPresent, pulling", containers: "a", observed: "sb0 pulling:a", status: "Pending(ContainerCreating) a=Waiting/ContainerCreating"},
		{name: "unknown image is absent", containers: "a", observed: "sb0", change: func(_ *Spec, o *Observed) { o.Images = nil }, actions: "pull:a"},
		{name: "Never, absent", containers: "a", observed: "sb0 absent:a", change: policy(corev1.PullNever, nil), status: "Pending(ErrImageNeverPull) a=Waiting/ErrImageNeverPull"},
		{name: "Never, present", containers: "a", observed: "sb0", change: policy(corev1.PullNever, nil), actions: "start:a.0@sb0"},
		{name: "Always, present", containers: "a", observed: "sb0", change: policy(corev1.PullAlways, nil), actions: "pull:a"},
		{name: "latest, present", containers: "a", observed: "sb0", change: policy("", nil), actions: "pull:a"},
		{name: "latest, of an archive", containers: "a", observed: "sb0", change: policy("", func(i *Image) { i.Loaded = true }), actions: "start:a.0@sb0"},
		{name: "Always, of an archive", containers: "a", observed: "sb0", change: policy(corev1.PullAlways, func(i *Image) { i.Loaded = true }), actions: "pull:a"},
		{name: "Always, pulled", containers: "a", observed: "sb0", now: 5, change: policy(corev1.PullAlways, func(i *Image) { i.Pulled = at(4) }), actions: "start:a.0@sb0"},
		{name: "Always, restart", containers: "a", observed: "sb0 a.0:exit=1@9-5", now: 9, change: policy(corev1.PullAlways, func(i *Image) { i.Pulled = at(4) }), actions: "pull:a"},
		{name: "Always, pulled for the restart", containers: "a", observed: "sb0 a.0:exit=1@9-5", now: 11, change: policy(corev1.PullAlways, func(i *Image) { i.Pulled = at(10) }), actions: "start:a.1@sb0"},
		{name: "failed once", containers: "a", observed: "sb0 absent:a", now: 5, change: policy(corev1.PullIfNotPresent, failure(5, "")), next: 15, status: "Pending(ErrImagePull) a=Waiting/ErrImagePull"},
		{name: "failed, waited", containers: "a", observed: "sb0 absent:a", now: 15, change: policy(corev1.PullIfNotPresent, failure(5, "")), actions: "pull:a"},
		{name: "failed with a reason", containers: "a", observed: "sb0 absent:a", now: 5, change: policy(corev1.PullIfNotPresent, failure(5, "InvalidImageName")), next: 15, status: "Pending(InvalidImageName) a=Waiting/InvalidImageName"},
		{name: "failed again", containers: "a", observed: "sb0 absent:a", now: 25, change: func(s *Spec, o *Observed) {
			policy(corev1.PullIfNotPresent, failure(25, ""))(s, o)
			o.Backoffs = Backoffs{keyImage("img-a:1"): {Count: 1, Last: at(5)}}
		}, next: 45, status: "Pending(ImagePullBackOff) a=Waiting/ImagePullBackOff"},
		{name: "failed before it was loaded", containers: "a", observed: "sb0", now: 5, change: policy(corev1.PullIfNotPresent, failure(5, "")), actions: "start:a.0@sb0"},
		{name: "failed before it was pulled", containers: "a", observed: "sb0", now: 9, change: policy(corev1.PullAlways, func(i *Image) {
			failure(5, "")(i)
			i.Pulled = at(8)
		}), actions: "start:a.0@sb0"},
		{name: "failed while the sandbox is created", containers: "a", observed: "absent:a creating", now: 5, change: policy(corev1.PullIfNotPresent, failure(5, "")), next: 15, status: "Pending(ErrImagePull) a=Waiting/ErrImagePull"},
	} {
		c.check(t)
	}
	// One pull serves all containers with the same image.
	s := makeSpec(t, "Always", "a b")
	s.Pod.Spec.Containers[1].Image = "img-a:1"
	if got := show(Plan(s, observe(t, s.Pod, "sb0 absent:a"), start).Actions); got != "pull:a" {
		t.Errorf("same image: %s", got)
	}
	// A success resets the count of failures.
	o := observe(t, s.Pod, "sb0 a.0:run b.0:run")
	o.Backoffs = Backoffs{keyImage("img-a:1"): {Count: 5, Last: at(5)}}
	o.Images["img-a:1"] = Image{State: ImagePresent, Pulled: at(9), Failure: Failure{At: at(5)}}
	if got := Plan(s, o, at(10)).Backoffs[keyImage("img-a:1")]; got.Count != 0 {
		t.Errorf("after a success: %+v", got)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	deadline := func(s *Spec, _ *Observed) { s.Pod.Spec.ActiveDeadlineSeconds = new(int64(60)) }
	for _, c := range []planCase{
		{name: "not reached", containers: "a", observed: "sb0 a.0:run", now: 5, change: deadline, next: 60, status: "Running ready a=Running"},
		{name: "reached", containers: "a b", observed: "sb0 a.0:run b.0:run", now: 61, change: deadline, actions: "stop:a.0/29s stop:b.0/29s", status: "Running(DeadlineExceeded) a=Running b=Running"},
		{name: "reached before it ran", containers: "a", observed: "absent:a", now: 60, change: deadline, status: "Failed(DeadlineExceeded) a=Waiting/ContainerCreating"},
		{name: "stopped after it", containers: "a", observed: "sb0 a.0:exit=143@62", now: 63, change: deadline, actions: "stop:sb0", status: "Failed(DeadlineExceeded) a=Terminated/Error"},
		{name: "stopped by it, Never", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=143@62", now: 99, change: deadline, status: "Failed(DeadlineExceeded) a=Terminated/Error"},
		{name: "ended before", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=0@59", now: 99, change: deadline, status: "Succeeded(Completed) a=Terminated/Completed"},
		{name: "stopped before", containers: "a", observed: "sb0:stopped a.0:exit=143@41", now: 99, change: func(s *Spec, o *Observed) {
			deadline(s, o)
			s.Want, s.Since = Stop, at(40)
		}, status: "Stopped a=Terminated/Error"},
	} {
		c.check(t)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	want := func(w Want, since int, f func(s *Spec, o *Observed)) func(*Spec, *Observed) {
		return func(s *Spec, o *Observed) {
			s.Want, s.Since = w, at(since)
			if f != nil {
				f(s, o)
			}
		}
	}
	grace := func(seconds int) func(*Spec, *Observed) {
		return func(s *Spec, _ *Observed) { s.Grace = new(time.Duration(seconds) * time.Second) }
	}
	stopping := func(seconds int, f func(*Spec, *Observed)) func(*Spec, *Observed) {
		return func(s *Spec, o *Observed) {
			for i := range o.Containers {
				o.Containers[i].Deadline = at(seconds)
			}
			if f != nil {
				f(s, o)
			}
		}
	}
	for _, c := range []planCase{
		{name: "containers first", containers: "s:p a b", observed: "sb0 p.0:run a.0:run b.0:exit=0@1", now: 10, change: want(Stop, 10, nil), actions: "stop:a.0/30s",
			status: "Running(Terminating) p=Running a=Running b=Terminated/Completed"},
		{name: "then sidecars", containers: "s:p s:q a", observed: "sb0 p.0:run q.0:run a.0:exit=143@12", now: 12, change: want(Stop, 10, nil), actions: "stop:q.0/28s"},
		{name: "one by one", containers: "s:p s:q a", observed: "sb0 p.0:run q.0:exit=143@13 a.0:exit=143@12", now: 13, change: want(Stop, 10, nil), actions: "stop:p.0/27s"},
		{name: "at least the minimum grace period", containers: "s:p a", observed: "sb0 p.0:run a.0:exit=137@40", now: 40, change: want(Stop, 10, nil), actions: "stop:p.0/2s"},
		{name: "init container together with the containers", containers: "s:p i:x a", observed: "sb0 p.0:run x.0:run", now: 10, change: want(Stop, 10, nil), actions: "stop:x.0/30s"},
		{name: "then the sandbox", containers: "a", observed: "sb0 a.0:exit=143@12", now: 12, change: want(Stop, 10, nil), actions: "stop:sb0"},
		{name: "stopping", containers: "a", observed: "sb0:stopping a.0:exit=143@12", now: 12, change: want(Stop, 10, nil)},
		{name: "stopped", containers: "a", observed: "sb0:stopped a.0:exit=143@12", now: 12, change: want(Stop, 10, nil), status: "Stopped a=Terminated/Error"},
		{name: "ended before", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=0@5", now: 12, change: want(Stop, 10, nil), status: "Succeeded(Completed) a=Terminated/Completed"},
		{name: "never ran", containers: "a", now: 12, change: want(Stop, 10, nil), status: "Stopped a=Waiting/ContainerCreating"},
		{name: "Never, never ran", policy: "Never", containers: "i:x a", observed: "sb0:stopped x.0:exit=0@1", now: 12, change: want(Stop, 10, nil), status: "Stopped x=Terminated/Completed a=Waiting/PodInitializing"},
		{name: "sandbox is being created", containers: "a", observed: "creating", now: 12, change: want(Stop, 10, nil), status: "Pending(Terminating) a=Waiting/ContainerCreating"},
		{name: "container is being started", containers: "s:p a", observed: "sb0 p.0:run starting:a", now: 12, change: want(Stop, 10, nil)},
		{name: "after the clock was set back", containers: "a", observed: "sb0 a.0:run", now: 10, change: want(Stop, 3610, nil), actions: "stop:a.0/30s"},
		{name: "overridden grace period", containers: "a", observed: "sb0 a.0:run", now: 10, change: want(Stop, 10, grace(5)), actions: "stop:a.0/5s"},
		{name: "no grace period", containers: "a", observed: "sb0 a.0:run", now: 10, change: want(Stop, 10, grace(0)), actions: "stop:a.0/0s"},
		{name: "negative grace period", containers: "a", observed: "sb0 a.0:run", now: 10, change: want(Stop, 10, grace(-5)), actions: "stop:a.0/0s"},
		{name: "in progress", containers: "a", observed: "sb0 a.0:run", now: 20, change: want(Stop, 10, stopping(40, nil)), next: 40, status: "Running(Terminating) serving a=Running"},
		{name: "in progress, one has ended", containers: "a b", observed: "sb0 a.0:run b.0:exit=0@15", now: 20, change: want(Stop, 10, stopping(40, nil)), next: 40,
			status: "Running(Terminating) a=Running b=Terminated/Completed"},
		{name: "can't be extended", containers: "a", observed: "sb0 a.0:run", now: 20, change: want(Stop, 10, stopping(40, grace(100))), next: 40},
		{name: "can be shortened", containers: "a", observed: "sb0 a.0:run", now: 20, change: want(Stop, 10, stopping(40, grace(15))), actions: "stop:a.0/5s"},
		{name: "can be shortened to nothing", containers: "a", observed: "sb0 a.0:run", now: 20, change: want(Stop, 10, stopping(40, grace(0))), actions: "stop:a.0/0s"},
		{name: "being killed", containers: "a", observed: "sb0 a.0:run", now: 41, change: want(Stop, 10, stopping(40, nil))},
		{name: "remove stops first", containers: "a", observed: "sb0 a.0:run", now: 10, change: want(Remove, 10, nil), actions: "stop:a.0/30s"},
		{name: "then removes containers", containers: "a", observed: "sb0:stopped a.0:exit=0@1 a.1:created", now: 10, change: want(Remove, 10, nil), actions: "remove:a.0 remove:a.1"},
		{name: "then removes sandboxes", containers: "a", observed: "sb0:stopped sb1:stopped", now: 10, change: want(Remove, 10, nil), actions: "remove:sb0 remove:sb1"},
	} {
		c.check(t)
	}
	s := makeSpec(t, "Always", "a")
	s.Want = Remove
	for words, gone := range map[string]bool{"": true, "creating": false, "sb0:stopped": false, "starting:a": false} {
		if d := Plan(s, observe(t, s.Pod, words), start); d.Gone != gone {
			t.Errorf("%q: gone %t", words, d.Gone)
		}
	}
}

func TestStatusDetails(t *testing.T) {
	t.Parallel()
	s := makeSpec(t, "Always", "i:x a")
	o := observe(t, s.Pod, "sb0 x.0:exit=0@1 a.2:exit=3@5-4")
	o.Containers[1].Message = "panic"
	o.Backoffs = Backoffs{keyContainer("a"): {Count: 3, Last: at(4)}}
	d := Plan(s, o, at(6))
	got := d.Status.Containers[1]
	want := ContainerStatus{
		Name: "a", Image: "img-a:1", ID: "a.2", State: Waiting, Reason: "CrashLoopBackOff", Message: "back-off 40s restarting failed container a: panic",
		Restarts: 2, ExitCode: 3, Started: at(4), Finished: at(5),
	}
	if got != want {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	if x := d.Status.Containers[0]; !x.Init || !x.Ready || x.Restarts != 0 {
		t.Errorf("%+v", x)
	}
	if !slices.Equal(d.Status.IPs, []string{"10.0.0.1"}) || !d.Status.Initialized || d.Status.Ready {
		t.Errorf("%+v", d.Status)
	}
	o = observe(t, s.Pod, "sb0 x.0:exit=0@1 a.0:exit=3@5")
	o.Containers[1].Message = "panic"
	if got := Plan(s, o, at(5)).Status; got.Containers[1].Message != "panic" || got.Message != "panic" {
		t.Errorf("%+v", got)
	}
}

// TestObservedIsNotModified checks that Plan can be called again with the same observed state.
func TestObservedIsNotModified(t *testing.T) {
	t.Parallel()
	s := makeSpec(t, "Always", "a")
	o := observe(t, s.Pod, "sb0 a.0:exit=1@5 a.1:exit=1@6")
	o.Backoffs = Backoffs{}
	first := Plan(s, o, at(6))
	if len(o.Backoffs) > 0 {
		t.Errorf("%v", o.Backoffs)
	}
	second := Plan(s, o, at(6))
	if show(first.Actions) != show(second.Actions) || describe(first.Status) != describe(second.Status) {
		t.Error("the second decision differs")
	}
	o.Backoffs = first.Backoffs
	third := Plan(s, o, at(6))
	if show(third.Actions) != show(first.Actions) || third.Backoffs[keyContainer("a")] != first.Backoffs[keyContainer("a")] {
		t.Errorf("counted twice: %+v", third.Backoffs)
	}
}
