package benchcmd

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/huskd/husk/internal/bench"
	"github.com/huskd/husk/internal/bench/report"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
)

// view shows the progress of a benchmark: a live region with the medians so far on a terminal, or
// else a line when a workload starts.
type view struct {
	c        *command
	live     *terminal.Live // nil without a live region
	mu       sync.Mutex     // guards the fields below if live is nil
	workload string
	done     int
	total    int
	rows     []*operationView
}

// operationView holds the samples of one operation on one endpoint in the current workload.
type operationView struct {
	endpoint, operation string
	sorted              []float64 // ms
	errors              int
}

func (c *command) newView() *view {
	v := &view{c: c}
	if terminal.Fancy(c.Errs) {
		v.live = terminal.NewLive(c.Errs, v.frame)
	}
	return v
}

func (v *view) close() {
	if v.live != nil {
		v.live.Close()
	}
}

// step records a sample.
func (v *view) step(s bench.Step) {
	if v.live != nil {
		v.live.Update(func() { v.record(s) })
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.record(s) {
		_, _ = fmt.Fprintln(v.c.Errs, s.Workload+" …")
	}
}

// record adds a sample and reports whether it is the first of its workload.
func (v *view) record(s bench.Step) (first bool) {
	if first = s.Workload != v.workload; first {
		v.workload, v.rows = s.Workload, nil
	}
	v.done, v.total = s.Done, s.Total
	i := slices.IndexFunc(v.rows, func(r *operationView) bool { return r.endpoint == s.Endpoint && r.operation == s.Operation })
	if i < 0 {
		i = len(v.rows)
		v.rows = append(v.rows, &operationView{endpoint: s.Endpoint, operation: s.Operation})
	}
	row := v.rows[i]
	if s.Err != nil {
		row.errors++
		return first
	}
	took := float64(s.Took.Nanoseconds()) / 1e6
	at, _ := slices.BinarySearch(row.sorted, took)
	row.sorted = slices.Insert(row.sorted, at, took)
	return first
}

// frame draws the current workload.
func (v *view) frame(canvas render.Canvas) []string {
	if v.workload == "" {
		return []string{render.Faint.Paint("connecting")}
	}
	lines := []string{fmt.Sprintf("%s  %s", v.workload, v.bar(canvas))}
	widths := [2]int{}
	for _, r := range v.rows {
		widths = [2]int{max(widths[0], render.Width(r.endpoint)), max(widths[1], render.Width(r.operation))}
	}
	for _, r := range v.rows {
		line := "  " + render.Pad(r.operation, widths[1]) + "  " + render.Pad(r.endpoint, widths[0]) + "  "
		line += render.Pad(strconv.Itoa(len(r.sorted)), 6) + fmt.Sprintf("p50 %s ms", render.Pad(report.Number(report.Quantile(r.sorted, 0.5)), 8))
		if r.errors > 0 {
			line += render.Bad.Paint(fmt.Sprintf("  %d failed", r.errors))
		}
		lines = append(lines, line)
	}
	return lines
}

// barWidth is the width of the progress bar in columns.
const barWidth = 24

func (v *view) bar(canvas render.Canvas) string {
	if v.total == 0 {
		return ""
	}
	full, empty := "#", "."
	if canvas.UTF8 {
		full, empty = "█", "░"
	}
	n := barWidth * v.done / v.total
	s := ""
	for i := range barWidth {
		if i < n {
			s += full
		} else {
			s += empty
		}
	}
	return fmt.Sprintf("%s %d of %d", s, v.done, v.total)
}
