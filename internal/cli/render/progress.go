package render

import (
	"fmt"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// Canvas is the size of the screen in characters.
type Canvas struct {
	Width, Height int
	// UTF8 allows characters beyond ASCII.
	UTF8 bool
}

// The stages of a huskv1.Layer that are drawn differently.
const (
	layerWaiting  = "waiting"
	layerUnpacked = "unpacked"
)

// Progress draws the progress of a pull or a load.
type Progress struct {
	last   *huskv1.Progress
	total  Rate
	layers map[string]*Rate
}

// Update records the progress at now.
func (t *Progress) Update(now time.Time, p *huskv1.Progress) {
	if t.last != nil && t.last.Ref != p.Ref {
		*t = Progress{}
	}
	if t.layers == nil {
		t.layers = map[string]*Rate{}
	}
	t.last = p
	t.total.Add(now, p.DoneBytes)
	for _, l := range p.Layers {
		r := t.layers[l.Digest+l.Stage]
		if r == nil {
			r = &Rate{}
			t.layers[l.Digest+l.Stage] = r
		}
		r.Add(now, l.DoneBytes)
	}
}

// Lines draws the total and a line for each layer. If they don't fit, the layers in progress are
// preferred.
func (t *Progress) Lines(now time.Time, c Canvas) []string {
	if t.last == nil {
		return nil
	}
	lines := []string{t.Line(now, c)}
	space := c.Height - len(lines)
	layers, hidden := t.last.Layers, 0
	if len(layers) > space {
		layers, hidden = busiest(layers, max(0, space-1))
	}
	for _, l := range layers {
		lines = append(lines, t.layerLine(now, l, c))
	}
	if hidden > 0 {
		lines = append(lines, Cut(fmt.Sprintf("  and %d more layers", hidden), c.Width))
	}
	return lines
}

// Line draws the total in one line.
func (t *Progress) Line(now time.Time, c Canvas) string {
	if t.last == nil {
		return ""
	}
	p := t.last
	head := Clean(p.Ref) + "  " + Clean(p.Stage)
	if p.TotalBytes == 0 {
		if p.DoneBytes > 0 { // the total size isn't known
			head += "  " + Size(p.DoneBytes)
		}
		return Cut(head, c.Width)
	}
	return meter{head, p.DoneBytes, p.TotalBytes, &t.total}.draw(now, c)
}

// busiest picks at most n layers: first those in progress, then those that wait, then those that
// are done. It keeps their order.
func busiest(layers []*huskv1.Layer, n int) (picked []*huskv1.Layer, hidden int) {
	rank := func(l *huskv1.Layer) int {
		switch l.Stage {
		case layerWaiting:
			return 1
		case layerUnpacked:
			return 2
		default:
			return 0
		}
	}
	keep := make([]bool, len(layers))
	kept := 0
	for r := range 3 {
		for i, l := range layers {
			if kept < n && rank(l) == r {
				keep[i] = true
				kept++
			}
		}
	}
	for i, l := range layers {
		if keep[i] {
			picked = append(picked, l)
		}
	}
	return picked, len(layers) - kept
}

// stageWidth is the width of the longest stage of a layer, "downloading".
const stageWidth = 11

func (t *Progress) layerLine(now time.Time, l *huskv1.Layer, c Canvas) string {
	head := "  " + Clean(ShortID(l.Digest)) + "  " + Pad(Clean(l.Stage), stageWidth)
	if l.Stage == layerWaiting || l.DoneBytes >= l.TotalBytes { // not in progress
		if l.TotalBytes > 0 {
			head += "  " + Size(l.TotalBytes)
		}
		return Cut(strings.TrimRight(head, " "), c.Width)
	}
	return meter{head, l.DoneBytes, l.TotalBytes, t.layers[l.Digest+l.Stage]}.draw(now, c)
}

// ShortID returns the part of a digest or an ID that people are shown.
func ShortID(digest string) string {
	_, hex, found := strings.Cut(digest, ":")
	if !found {
		hex = digest
	}
	return Cut(hex, 12)
}

// meter is one line with a bar.
type meter struct {
	head        string
	done, total int64
	rate        *Rate
}

const (
	barMin = 8
	barMax = 40
)

func (m meter) draw(now time.Time, c Canvas) string {
	done := min(max(m.done, 0), m.total)
	tail := fmt.Sprintf("%6s / %-6s", Size(done), Size(m.total))
	if speed := m.rate.PerSecond(now); speed > 0 && done < m.total {
		tail += fmt.Sprintf("  %7s/s", Size(speed))
		if eta, ok := m.rate.ETA(now, m.total-done); ok {
			tail += fmt.Sprintf("  %4s left", Age(eta))
		}
	}
	// Space for speed and time is reserved, so that the bar doesn't change its width.
	bar := min(c.Width-Width(m.head)-2-2-tailWidth, barMax)
	line := m.head
	if bar >= barMin {
		line += "  " + Bar(bar, done, m.total, c.UTF8)
	}
	return Cut(strings.TrimRight(line+"  "+tail, " "), c.Width)
}

// tailWidth is the width of "30.1MB / 30.1MB 5.20MB/s 5m30s left".
const tailWidth = 6 + 3 + 6 + 2 + 9 + 2 + 10

// Bar draws a bar of width columns that shows done of total.
func Bar(width int, done, total int64, utf8 bool) string {
	full, empty, left, right := "=", " ", "[", "]"
	if utf8 {
		full, empty, left, right = "━", "·", "", ""
	}
	width -= len(left) + len(right)
	if width <= 0 || total <= 0 {
		return ""
	}
	// Floating point, since bytes times columns may overflow.
	n := int(float64(width) * float64(min(max(done, 0), total)) / float64(total))
	return left + strings.Repeat(full, n) + strings.Repeat(empty, width-n) + right
}

// Stages returns a line of text for each stage of a pull or a load.
type Stages struct{ ref, stage string }

// Next returns the line to print for p, or "" if its stage was printed already. Downloading is
// printed once its size is known.
func (s *Stages) Next(p *huskv1.Progress) string {
	if p.Ref == s.ref && p.Stage == s.stage || p.Stage == "" || p.Stage == "done" {
		return ""
	}
	if p.Stage == "downloading" && p.TotalBytes == 0 {
		return ""
	}
	s.ref, s.stage = p.Ref, p.Stage
	line := OneLine(p.Stage + " " + p.Ref)
	if p.TotalBytes > 0 {
		line += ": " + Size(p.TotalBytes)
		if n := len(p.Layers); n > 1 {
			line += fmt.Sprintf(" in %d layers", n)
		}
	}
	return line
}
