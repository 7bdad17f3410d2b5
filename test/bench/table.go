package main

import (
	"fmt"
	"strings"

	"github.com/huskd/husk/internal/bench"
	"github.com/huskd/husk/internal/bench/report"
)

// findings are the reports of all series, by their names.
type findings struct {
	reports   map[string]report.Report
	hostLocal hostLocalTimes
	plugins   benchmarks
	services  benchmarks
}

// row is a line of the table: a figure of containerd and of Husk, each nil if it wasn't measured.
type row struct {
	what, unit string
	peer, husk *float64
	goal       goal
}

// goal is the target for a figure of Husk, possibly relative to containerd's.
type goal struct {
	text    string
	reached func(peer, husk float64) bool // nil if there is no goal
	alone   bool                          // it doesn't depend on containerd's figure
}

func atMost(limit float64, unit string) goal {
	return goal{"≤ " + report.Number(limit) + unit, func(_, husk float64) bool { return husk <= limit }, true}
}

// part is a goal of at most a fraction of containerd's figure.
func part(limit float64, text string) goal {
	return goal{"≤ " + text, func(peer, husk float64) bool { return husk <= limit*peer }, false}
}

// fold is a goal of at least a multiple of containerd's figure.
func fold(times float64) goal {
	return goal{fmt.Sprintf("≥ %g×", times), func(peer, husk float64) bool { return husk >= times*peer }, false}
}

// Names of the endpoints.
const (
	peerName = "containerd"
	huskName = "husk"
	crunName = "husk-crun"
)

// source locates a value in the findings.
type source struct{ series, workload, name string }

// p50 returns the median of an operation; nil if it wasn't measured.
func (f findings) p50(s source, endpoint string) *float64 {
	if o := f.reports[s.series].Result(s.workload, endpoint).Operation(s.name); o != nil {
		return &o.P50
	}
	return nil
}

func (f findings) figure(s source, endpoint string) *float64 {
	if g := f.reports[s.series].Result(s.workload, endpoint).Figure(s.name); g != nil {
		return &g.Value
	}
	return nil
}

// rows returns the lines of the table, those with goals first.
func rows(f findings) []row {
	batch := "pods, " + fmt.Sprintf(bench.AtATime, atATime)
	held := f.held("list")
	ms := func(what string, s source, g goal) row {
		return row{what, "ms", f.p50(s, peerName), f.p50(s, huskName), g}
	}
	crun := func(what string, s source, g goal) row {
		return row{what, "ms", f.p50(s, peerName), f.p50(s, crunName), g}
	}
	fig := func(what, unit string, s source, g goal) row {
		return row{what, unit, f.figure(s, peerName), f.figure(s, huskName), g}
	}
	none := goal{}
	made := source{"one", "containers", bench.CreateStart}
	answer := source{"one", "agent", bench.Answers}
	crowd := source{"crowd", f.held("agent"), bench.AllAnswer}
	out := []row{
		ms("RunPodSandbox", source{"one", "pods", bench.RunPod}, part(1.0/15, "1/15")),
		ms("the same with a shared PID namespace", source{"one", "shared", bench.RunPod}, part(0.1, "1/10")),
		ms("StopPodSandbox and RemovePodSandbox", source{"one", "pods", bench.EndPod}, part(0.1, "1/10")),
		ms("CreateContainer and StartContainer, runc", made, part(0.8, "0.8×")),
		crun("the same, Husk with crun", made, part(1.0/3, "1/3")),
		fig(fmt.Sprintf("pods created, %d at a time", atATime), "a second", source{"batch", batch, bench.PodsUp}, fold(10)),
		fig("memory of an idle pod, PSS", "MB", source{"batch", batch, bench.PodMemory}, atMost(0.1, " MB")),
		fig("memory of a container, PSS", "MB", source{"many", held, bench.MonitorMemory}, atMost(0.6, " MB")),
		fig("memory of the daemon with these pods, PSS", "MB", source{"batch", batch, bench.DaemonMemory}, atMost(40, " MB")),
		ms("manifest to TCP answer, runc", answer, atMost(60, " ms")),
		crun("the same with crun", answer, atMost(40, " ms")),
		ms("of which create, runc", source{"one", "agent", bench.CreateStage}, none),
		crun("of which create, crun", source{"one", "agent", bench.CreateStage}, none),
		ms(strings.Replace(f.held("agent"), "agent", "manifests", 1)+", all to answer, runc", crowd, atMost(8000, " ms")),
		crun("the same with crun", crowd, atMost(8000, " ms")),
		{"in-process CNI ADD", "ms", nil, f.p50(source{"one", "net", bench.Attach}, bench.BuiltIn), atMost(3, " ms")},
		{"ADD of a CNI list with a port mapping: husk-cni in huskd", "ms", f.plugins.of(listByPrograms, addUnit), f.plugins.of(listInHuskd, addUnit), atMost(3, " ms")},
		{"its DEL", "ms", f.plugins.of(listByPrograms, delUnit), f.plugins.of(listInHuskd, delUnit), atMost(3, " ms")},
		{"the same with programs, ADD: husk-cni alone", "ms", f.plugins.of(chain, addUnit), f.plugins.of(huskCNI, addUnit), atMost(8, " ms")},
		{"its DEL", "ms", f.plugins.of(chain, delUnit), f.plugins.of(huskCNI, delUnit), none},
		{"husk-cni VERSION, from start to exit", "ms", nil, f.plugins.of(huskCNIVersion, startUnit), atMost(5, " ms")},
		f.fill(),
		ms("ExecSync", source{"one", "exec", bench.Exec}, none),
		fig("pods created and removed", "a second", source{"batch", batch, bench.PodsThrough}, none),
		ms("ListPodSandbox with these pods", source{"many", held, bench.ListPods}, none),
		ms("ListContainers with these pods", source{"many", held, bench.ListAll}, none),
		ms("killed, until it serves again", source{"restart", f.held("restart"), bench.Serves}, none),
		ms("killed, until it lists all these pods again", source{"restart", f.held("restart"), bench.Adopts}, none),
		fig("CPU time for a pod's life", "ms", source{"one", "pods", bench.CPUTime}, none),
		fig("programs run for a pod's life", "", source{"one", "pods", bench.Programs}, none),
		fig("disk flushes for a pod's life", "", source{"one", "pods", bench.Flushes}, none),
		fig("CPU time for a container's life", "ms", source{"one", "containers", bench.CPUTime}, none),
		fig("programs run for a container's life", "", source{"one", "containers", bench.Programs}, none),
		fig("disk flushes for a container's life", "", source{"one", "containers", bench.Flushes}, none),
	}
	return append(out, serviceRows(f)...)
}

// held returns the title of a workload with several pods at a time, whatever their number.
func (f findings) held(workload string) string {
	for _, r := range f.reports {
		for _, res := range r.Results {
			if strings.HasPrefix(res.Workload, workload+", ") {
				return res.Workload
			}
		}
	}
	return workload
}

// fill returns by how much an ADD takes longer when many addresses are leased: for host-local
// alone, and for Husk's whole ADD, of which the allocation is a part.
func (f findings) fill() row {
	r := row{what: fmt.Sprintf("ADD with %d leases, relative to none", hostLocalFill), unit: "×", goal: atMost(1.2, "×")}
	if f.hostLocal.empty > 0 {
		ratio := f.hostLocal.full / f.hostLocal.empty
		r.peer = &ratio
	}
	add := f.p50(source{"one", "net", bench.Attach}, bench.BuiltIn)
	empty := f.p50(source{"one", "ipam", bench.LeaseRecord}, bench.Leased(0))
	full := f.p50(source{"one", "ipam", bench.LeaseRecord}, bench.Leased(hostLocalFill))
	if add != nil && empty != nil && full != nil {
		ratio := (*add + *full - *empty) / *add
		r.husk = &ratio
	}
	return r
}

// cells returns the columns of a row: what, containerd, Husk, ratio, goal, reached.
func (r row) cells() []string {
	value := func(v *float64) string {
		if v == nil {
			return "–"
		}
		return strings.TrimSpace(report.Number(*v) + " " + r.unit)
	}
	out := []string{r.what, value(r.peer), value(r.husk), "", r.goal.text, ""}
	if r.peer != nil && r.husk != nil {
		out[3] = report.Ratio(*r.husk, *r.peer)
	}
	if r.goal.reached == nil || r.husk == nil || r.peer == nil && !r.goal.alone {
		return out
	}
	var peer float64
	if r.peer != nil {
		peer = *r.peer
	}
	out[5] = "no"
	if r.goal.reached(peer, *r.husk) {
		out[5] = "yes"
	}
	return out
}

var header = []string{"", "containerd", "Husk", "ratio", "goal", "reached"}

// plain formats the table for a terminal.
func plain(rows []row) string {
	all := [][]string{header}
	for _, r := range rows {
		all = append(all, r.cells())
	}
	widths := make([]int, len(header))
	for _, cells := range all {
		for i, c := range cells {
			widths[i] = max(widths[i], len([]rune(c)))
		}
	}
	var b strings.Builder
	for _, cells := range all {
		line := ""
		for i, c := range cells {
			line += c + strings.Repeat(" ", widths[i]-len([]rune(c))+3)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// markdown formats the table for the document.
func markdown(rows []row) string {
	var b strings.Builder
	b.WriteString("| " + strings.Join(header, " | ") + " |\n|---|--:|--:|--:|--:|---|\n")
	for _, r := range rows {
		b.WriteString("| " + strings.Join(r.cells(), " | ") + " |\n")
	}
	return b.String()
}
