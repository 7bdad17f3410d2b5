package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// style is the style sheet of the page.
const style = `body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222;background:#fff}
h1,h2{font-weight:600}h2{margin-top:2em;border-bottom:1px solid #ddd}figure{display:inline-block;margin:1em 1em 0 0;vertical-align:top}
figcaption{font-weight:600}table{border-collapse:collapse;font-size:13px}th,td{padding:.2em .7em;text-align:right;border-bottom:1px solid #eee}
th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}svg{font:11px system-ui,sans-serif}.axis{stroke:#bbb}.faint{fill:#777}.bad{color:#b00}`

// colours are the colours of the endpoints, which people with colour blindness can tell apart.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// Page returns the report as a self-contained HTML page, without scripts or links.
func Page(r Report, before *Report) string {
	var b strings.Builder
	title := "husk bench, " + r.Began.UTC().Format("2006-01-02 15:04 UTC")
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%s</title><style>%s</style></head><body>\n<h1>%s</h1>\n", title, style, title)
	m := r.Machine
	fmt.Fprintf(&b, "<p>%d CPUs (%s), %s GB, Linux %s, cgroup %s; load average %.2f before, %.2f after; %.0f s.</p>\n",
		m.CPUs, text(m.CPU), Number(float64(m.Memory)/1e9), text(m.Kernel), text(m.Cgroup), m.LoadBefore, m.LoadAfter, r.Seconds)
	b.WriteString("<p>")
	for i, e := range r.Endpoints {
		fmt.Fprintf(&b, "<span style=\"color:%s\">■</span> %s: %s at %s<br/>", colour(i), text(e.Name), text(e.Runtime), text(e.Socket))
	}
	b.WriteString("</p>\n")
	done := map[string]bool{}
	for _, res := range r.Results {
		if !done[res.Workload] {
			done[res.Workload] = true
			r.section(&b, res.Workload)
		}
	}
	b.WriteString("<h2>All figures</h2>\n")
	table(&b, r, before)
	b.WriteString("</body></html>\n")
	return b.String()
}

func text(s string) string { return html.EscapeString(s) }

func colour(i int) string { return colours[max(i, 0)%len(colours)] }

// colourOf returns the colour for the endpoint of a result.
func (r Report) colourOf(res Result) string {
	for i, e := range r.Endpoints {
		if e.Name == res.Endpoint {
			return colour(i)
		}
	}
	return colour(len(r.Endpoints))
}

func (r Report) section(b *strings.Builder, workload string) {
	all := r.of(workload)
	fmt.Fprintf(b, "<h2>%s</h2>\n", text(workload))
	for _, res := range all {
		for _, f := range res.Failures {
			fmt.Fprintf(b, "<p class=\"bad\">%s: %s</p>\n", text(res.Endpoint), text(f))
		}
	}
	for _, name := range names(all, func(res Result) (out []string) {
		for _, o := range res.Operations {
			out = append(out, o.Name)
		}
		return out
	}) {
		r.scatter(b, all, name)
	}
	for _, name := range names(all, func(res Result) (out []string) {
		for _, f := range res.Figures {
			if f.Absent == "" {
				out = append(out, f.Name)
			}
		}
		return out
	}) {
		r.bars(b, all, name)
	}
}

// Sizes of a plot in pixels.
const (
	width, height       = 420.0, 180.0
	left, bottom, top   = 50.0, 20.0, 10.0
	barHeight, barStart = 22.0, 110.0
)

// least replaces 0 in logarithms: the resolution of samples.
const least = 0.0001

// scatter plots the samples of an operation in order, with a colour for each endpoint and a line at
// the median.
func (r Report) scatter(b *strings.Builder, all []Result, name string) {
	low, high, most := math.Inf(1), 0.0, 0
	for _, res := range all {
		if o := res.Operation(name); o != nil {
			for _, s := range o.Samples {
				low, high = min(low, max(s, least)), max(high, s, least)
			}
			most = max(most, len(o.Samples))
		}
	}
	if most == 0 {
		return
	}
	scale := scaleFor(low, high)
	fmt.Fprintf(b, "<figure><figcaption>%s, ms</figcaption><svg width=\"%.0f\" height=\"%.0f\" role=\"img\" aria-label=\"%s\">\n", text(name), width, height, text(name))
	for _, v := range scale.ticks() {
		y := scale.y(v)
		fmt.Fprintf(b, "<line class=\"axis\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"faint\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left, width, y, y, left-5, y+4, Number(v))
	}
	for _, res := range all {
		o := res.Operation(name)
		if o == nil {
			continue
		}
		c := r.colourOf(res)
		for i, s := range o.Samples {
			x := left + (float64(i)+0.5)/float64(most)*(width-left)
			fmt.Fprintf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" fill=\"%s\" fill-opacity=\".6\"/>", x, scale.y(s), c)
		}
		fmt.Fprintf(b, "\n<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"><title>%s: median %s ms</title></line>\n",
			left, width, scale.y(o.P50), scale.y(o.P50), c, text(res.Endpoint), Number(o.P50))
	}
	b.WriteString("</svg></figure>\n")
}

// bars draws a figure of all endpoints.
func (r Report) bars(b *strings.Builder, all []Result, name string) {
	high, unit := 0.0, ""
	for _, res := range all {
		if f := res.Figure(name); f != nil {
			high, unit = max(high, f.Value), f.Unit
		}
	}
	if high <= 0 {
		return
	}
	fmt.Fprintf(b, "<figure><figcaption>%s, %s</figcaption><svg width=\"%.0f\" height=\"%.0f\" role=\"img\" aria-label=\"%s\">\n", text(name), text(unit), width, barHeight*float64(len(all))+4, text(name))
	for i, res := range all {
		f := res.Figure(name)
		if f == nil {
			continue
		}
		y := barHeight * float64(i)
		fmt.Fprintf(b, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%s</text><rect x=\"%.0f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" fill=\"%s\"/><text x=\"%.0f\" y=\"%.0f\">%s</text>\n",
			barStart-6, y+15, text(res.Endpoint), barStart, y+3, max(1, f.Value/high*(width-barStart-60)), barHeight-6, r.colourOf(res), width-52, y+15, Number(f.Value))
	}
	b.WriteString("</svg></figure>\n")
}

// scale is logarithmic, over whole powers of ten, so that 2 ms and 100 ms can be shown in one plot.
type scale struct{ low, high float64 } // exponents

func scaleFor(low, high float64) scale {
	s := scale{math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))}
	if s.high <= s.low {
		s.high = s.low + 1
	}
	return s
}

func (s scale) y(v float64) float64 {
	share := (math.Log10(max(v, least)) - s.low) / (s.high - s.low)
	return height - bottom - min(max(share, 0), 1)*(height-bottom-top)
}

func (s scale) ticks() (out []float64) {
	for e := s.low; e <= s.high; e++ {
		out = append(out, math.Pow(10, e))
	}
	return out
}

func table(b *strings.Builder, r Report, before *Report) {
	b.WriteString("<table><tr>")
	header := Header
	if before != nil {
		header = append(header[:len(header):len(header)], Against...)
	}
	for _, h := range header {
		fmt.Fprintf(b, "<th>%s</th>", h)
	}
	b.WriteString("</tr>\n")
	for _, row := range Rows(r, before) {
		b.WriteString("<tr>")
		for _, cell := range row {
			fmt.Fprintf(b, "<td>%s</td>", text(cell))
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("</table>\n")
}
