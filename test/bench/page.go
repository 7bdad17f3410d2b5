package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/huskd/husk/internal/bench/report"
)

// The markers around the part of the document that a run replaces.
const (
	pageBegin = "<!-- make bench: the last run -->\n"
	pageEnd   = "<!-- end -->\n"
)

// writePage replaces that part of the document.
func writePage(path, text string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(data), pageBegin)
	_, after, ended := strings.Cut(rest, pageEnd)
	if !found || !ended {
		return fmt.Errorf("%s has no place for the table: add the lines %q and %q", path, strings.TrimSpace(pageBegin), strings.TrimSpace(pageEnd))
	}
	return os.WriteFile(path, []byte(before+pageBegin+text+pageEnd+after), 0o644)
}

// busy is the load average above which other programs were running too: about the benchmark's own
// load.
const busy = 1.5

// document returns that part: the machine, the date, and the table.
func document(f findings, rows []row, versions string) string {
	first := f.reports["one"]
	m := first.Machine
	load := m.LoadBefore
	text := fmt.Sprintf("%s; %d CPUs (%s), %s GB, Linux %s, cgroup %s. %s.\n", first.Began.UTC().Format("2006-01-02"),
		m.CPUs, m.CPU, report.Number(float64(m.Memory)/1e9), m.Kernel, m.Cgroup, versions)
	if load > busy {
		text += fmt.Sprintf("\n**Other programs were running**: the load average was %.1f before the run. Times are longer than on a quiet machine, those of containers most; the runtimes took turns, so the ratios are more reliable.\n", load)
	} else {
		text += fmt.Sprintf("The load average before the run was %.1f.\n", load)
	}
	if n := errorsOf(f); n > 0 {
		text += fmt.Sprintf("\n%d operations failed.\n", n)
	}
	return text + "\n" + markdown(rows)
}

func errorsOf(f findings) (n int) {
	for _, r := range f.reports {
		n += r.Errors()
	}
	return n
}

// describe returns the versions of the programs that were measured.
func describe() string {
	var all []string
	for _, name := range []string{"runc", "crun", "conmon"} {
		out, err := exec.Command(name, "--version").Output()
		if err != nil {
			continue
		}
		if words := strings.Fields(string(out)); len(words) > 2 {
			all = append(all, name+" "+words[2])
		}
	}
	return "containerd " + version + ", " + strings.Join(all, ", ")
}
