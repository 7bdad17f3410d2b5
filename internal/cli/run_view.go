package cli

import (
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

// runView shows how pods start. With wait, how each turned out is a line on
// standard output, and what happens until then is on standard error: a region
// with the pods under way on a terminal, else a line for each step. Without
// wait all lines are on standard output.
type runView struct {
	a    *app
	wait bool
	live *terminal.Live // nil if there is no region
	mu   sync.Mutex     // of what follows, if there is no live
	pods []*podStart    // as they first appeared
	// tooLate says that time was up before the pods were.
	tooLate  bool
	failures complaints
}

// podStart is a pod on its way.
type podStart struct {
	name    string // namespace/name
	began   time.Time
	message string
	pulling bool
	bars    render.Transfer
	stages  render.Stages
	up      bool // it runs, and has yet to end
	over    bool // how it turned out was told
	failed  bool
}

func (a *app) newRunView(wait bool) *runView {
	v := &runView{a: a, wait: wait, failures: complaints{w: a.errs}}
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

// update takes what huskd says of a pod.
func (v *runView) update(ev *huskv1.RunEvent) {
	if v.live == nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.print(v.take(ev))
		return
	}
	var outcome string
	v.live.Update(func() { _, outcome = v.take(ev) }) // the region shows the steps
	if outcome != "" {
		v.live.Above(func() { v.print("", outcome) })
	}
}

// fail takes the error, if any, that ended the run of a file; timeUp if it
// only says that.
func (v *runView) fail(err error, timeUp bool) {
	note := func() {
		if timeUp {
			v.tooLate = true
			return
		}
		v.failures.add(err)
	}
	if v.live != nil {
		v.live.Above(note)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	note()
}

// print writes the lines of steps and of the outcome, if any.
func (v *runView) print(steps, outcome string) {
	to := v.a.out
	if v.wait {
		to = v.a.errs
	}
	_, _ = to.WriteString(steps)
	_, _ = v.a.out.WriteString(outcome)
}

// take notes the event in its pod and returns the lines that tell of it: steps
// on the way and how the pod turned out.
func (v *runView) take(ev *huskv1.RunEvent) (steps, outcome string) {
	p := v.pod(ev)
	p.failed = p.failed || ev.Phase == "Failed"
	if p.over {
		return "", ""
	}
	line := func(s string) string { return "pod " + p.name + " " + render.OneLine(s) + "\n" }
	if s := turnedOut(ev, v.wait); s != "" && (ev.Settled || !v.wait) {
		p.over = true
		return "", line(s)
	} else if s != "" { // it is to end, and hasn't yet
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
	name := render.Clean(ev.Namespace + "/" + ev.Name)
	i := slices.IndexFunc(v.pods, func(p *podStart) bool { return p.name == name })
	if i < 0 {
		i = len(v.pods)
		v.pods = append(v.pods, &podStart{name: name, began: time.Now().Add(-time.Duration(ev.ElapsedNs))})
	}
	return v.pods[i]
}

// turnedOut says how the pod of ev turned out; "" if that is still open.
func turnedOut(ev *huskv1.RunEvent, wait bool) string {
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
	default:
		return ""
	}
}

// frame draws the pods under way.
func (v *runView) frame(c render.Canvas) []string {
	now := time.Now()
	width := 0
	for _, p := range v.pods {
		width = max(width, render.Width(p.name))
	}
	var lines []string
	for _, p := range v.pods {
		if p.over {
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

// late says which pods were still under way when time was up; nil if it wasn't.
func (v *runView) late(limit time.Duration) error {
	if !v.tooLate {
		return nil
	}
	var names []string
	missed := "completed"
	for _, p := range v.pods {
		if p.over {
			continue
		}
		names = append(names, fmt.Sprintf("%s (%s)", p.name, p.message))
		if !p.up {
			missed = "ready"
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("not ready within %s: huskd has not begun, see its log", limit)
	}
	return fmt.Errorf("not %s within %s: %s: they go on, see husk ps -a", missed, limit, strings.Join(names, ", "))
}

// failed says how many pods failed; nil if none did.
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
