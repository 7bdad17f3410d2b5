package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
)

// runView shows how pods start. With wait, the result of each pod is a line on standard output, and
// its steps go to standard error: as a live region with the unfinished pods on a terminal, or else
// a line for each step. Without wait, all lines go to standard output.
type runView struct {
	a    *app
	wait bool
	live *terminal.Live // nil without a live region
	mu   sync.Mutex     // guards the fields below if live is nil
	pods []*podStart    // in the order of their first event
	// timedOut is set when the timeout passed before all pods had finished.
	timedOut bool
	errors   errorPrinter
}

// podStart is the progress of one pod.
type podStart struct {
	kind    string // pod, or the kind of a workload
	name    string // namespace/name
	began   time.Time
	message string
	pulling bool
	bars    render.Progress
	stages  render.Stages
	up      bool // running, but expected to complete
	done    bool // the result was printed
	failed  bool
}

func (a *app) newRunView(wait bool) *runView {
	v := &runView{a: a, wait: wait, errors: errorPrinter{w: a.errs}}
	if wait && terminal.Fancy(a.errs) {
		v.live = terminal.NewLive(a.errs, v.frame)
	}
	return v
}

func (v *runView) close() {
	if v.live != nil {
		v.live.Close()
	}
}

// update processes an event of a pod.
func (v *runView) update(ev *huskv1.RunEvent) {
	if ev.Note != "" {
		v.note(ev.Note)
		return
	}
	if v.live == nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.print(v.apply(ev))
		return
	}
	var result string
	v.live.Update(func() { _, result = v.apply(ev) }) // the region shows the steps
	if result != "" {
		v.live.Above(func() { v.print("", result) })
	}
}

// note prints a line that isn't about a pod.
func (v *runView) note(line string) {
	if v.live != nil {
		v.live.Above(func() { _, _ = fmt.Fprintln(v.a.errs, line) })
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	_, _ = fmt.Fprintln(v.a.errs, line)
}

// fail records the error that ended the request for a file; timedOut if the timeout did.
func (v *runView) fail(err error, timedOut bool) {
	note := func() {
		if timedOut {
			v.timedOut = true
			return
		}
		v.errors.add(err)
	}
	if v.live != nil {
		v.live.Above(note)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	note()
}

// print writes the lines for steps and for a result, if any.
func (v *runView) print(steps, result string) {
	to := v.a.out
	if v.wait {
		to = v.a.errs
	}
	_, _ = to.WriteString(steps)
	_, _ = v.a.out.WriteString(result)
}

// apply records the event in its pod and returns the lines to print: for steps on the way, and for
// the result of the pod.
func (v *runView) apply(ev *huskv1.RunEvent) (steps, result string) {
	p := v.pod(ev)
	p.failed = p.failed || ev.Phase == "Failed"
	if p.done {
		return "", ""
	}
	line := func(s string) string { return p.kind + " " + p.name + " " + render.OneLine(s) + "\n" }
	if s := resultText(ev, v.wait); s != "" && (ev.Settled || !v.wait) {
		p.done = true
		return "", line(s)
	} else if s != "" { // it is expected to complete, and has not yet
		p.pulling = false
		if !p.up {
			p.up, p.message = true, "running"
			steps = line(s)
		}
		return steps, ""
	}
	if ev.Message != "" && ev.Message != p.message {
		p.message = ev.Message
		steps = line(ev.Message)
	}
	p.pulling = ev.Progress != nil && ev.Progress.Stage != "done"
	if p.pulling {
		p.bars.Update(time.Now(), ev.Progress)
		if s := p.stages.Next(ev.Progress); s != "" {
			steps += line(s)
		}
	}
	return steps, ""
}

func (v *runView) pod(ev *huskv1.RunEvent) *podStart {
	name := render.Clean(strings.TrimPrefix(ev.Namespace+"/"+ev.Name, "/"))
	kind := cmp.Or(render.Clean(ev.Kind), "pod")
	i := slices.IndexFunc(v.pods, func(p *podStart) bool { return p.name == name && p.kind == kind })
	if i < 0 {
		i = len(v.pods)
		v.pods = append(v.pods, &podStart{kind: kind, name: name, began: time.Now().Add(-time.Duration(ev.ElapsedNs))})
	}
	return v.pods[i]
}

// resultText describes the result that ev reports for its pod; "" if there is none yet.
func resultText(ev *huskv1.RunEvent, wait bool) string {
	took := " in " + render.Elapsed(time.Duration(ev.ElapsedNs))
	at := ""
	if len(ev.Ips) > 0 {
		at = " at " + strings.Join(ev.Ips, ", ")
	}
	switch {
	case ev.Unchanged && ev.Ready:
		return "unchanged, ready" + at
	case ev.Unchanged && !wait:
		return "unchanged"
	case ev.Ready:
		return "ready" + at + took
	case ev.Phase == "Succeeded":
		return "completed" + took
	case ev.Phase == "Failed" && ev.Message != "":
		return "failed" + took + ": " + ev.Message
	case ev.Phase == "Failed":
		return "failed" + took
	case ev.Kind != "" && ev.Settled:
		return ev.Message
	default:
		return ""
	}
}

// frame draws the unfinished pods.
func (v *runView) frame(c render.Canvas) []string {
	now := time.Now()
	width := 0
	for _, p := range v.pods {
		width = max(width, render.Width(p.name))
	}
	var lines []string
	for _, p := range v.pods {
		if p.done {
			continue
		}
		age := "  " + render.Age(now.Sub(p.began))
		line := render.Pad(p.name, width) + "  " + render.OneLine(p.message)
		lines = append(lines, render.Cut(line, c.Width-len(age))+render.Faint.Paint(age))
		if p.pulling {
			inner := c
			inner.Width -= 2
			lines = append(lines, "  "+p.bars.Line(now, inner))
		}
	}
	return lines
}

// unfinished returns an error that names the pods which had not finished at the timeout; nil if it
// has not passed.
func (v *runView) unfinished(timeout time.Duration) error {
	if !v.timedOut {
		return nil
	}
	var names []string
	missed := "completed"
	for _, p := range v.pods {
		if p.done {
			continue
		}
		names = append(names, fmt.Sprintf("%s (%s)", p.name, p.message))
		if !p.up {
			missed = "ready"
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("not ready within %s: huskd has not started any pod, see its log", timeout)
	}
	return fmt.Errorf("not %s within %s: %s: they keep running, see husk ps -a", missed, timeout, strings.Join(names, ", "))
}

// failedPods returns the names of the pods that failed.
func (v *runView) failedPods() []string {
	var names []string
	for _, p := range v.pods {
		if p.failed && p.kind == "pod" {
			names = append(names, p.name)
		}
	}
	return names
}

// failed returns an error that names the failed pods; nil if there are none.
func (v *runView) failed() error {
	var names []string
	for _, p := range v.pods {
		if p.failed {
			names = append(names, p.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return errors.New("failed: " + strings.Join(names, ", ") + ": see husk logs and husk ps -a")
}
