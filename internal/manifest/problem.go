package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/manifest/fields"
	"github.com/huskd/husk/internal/manifest/remedy"
)

// Problem is one mistake in a manifest.
type Problem struct {
	// Line in the file, from 1; 0 if unknown.
	Line int
	// Subject is the pod ("pod default/web") or, if it has no name, its document ("document 2"). It
	// is empty for a problem of the file.
	Subject string
	// Path of the field, such as spec.containers[0].image; may be empty.
	Path string
	// Text says what is wrong and what to do.
	Text string
}

// Error lists the problems of a manifest that was refused. It is of the kind invalid argument.
type Error struct {
	File     string
	Problems []Problem
	// More is the number of problems that are not in Problems.
	More int
}

// Error returns a line for each problem. Each line begins with the file's name.
func (e *Error) Error() string {
	var lines []string
	for _, p := range e.Problems {
		where := e.File
		if p.Line > 0 {
			where = fmt.Sprintf("%s:%d", e.File, p.Line)
		}
		parts := []string{where}
		for _, part := range []string{p.Subject, p.Path, p.Text} {
			if part != "" {
				parts = append(parts, part)
			}
		}
		lines = append(lines, strings.Join(parts, ": "))
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("%s: and %d more problems", e.File, e.More))
	}
	return strings.Join(lines, "\n")
}

// Unwrap makes errdefs.IsInvalidArgument true.
func (e *Error) Unwrap() error { return errdefs.ErrInvalidArgument }

// maxProblems is the number of problems that are listed. A file of garbage has thousands.
const maxProblems = 50

// report collects the problems of one pod.
type report struct {
	subject  string
	from     remedy.Source
	lines    map[string]int // line of each path in the document
	problems []Problem
	faulty   map[string]bool // paths of values that could not be decoded completely
	more     int             // number of problems that are not in problems
}

func newReport(subject string) *report {
	return &report{subject: subject, lines: map[string]int{}, faulty: map[string]bool{}}
}

// misread adds a problem of decoding. The object at parent counts as decoded incompletely.
func (r *report) misread(parent, path string, line int, format string, args ...any) {
	r.faulty[parent], r.faulty[path] = true, true
	r.add(path, line, fmt.Sprintf(format, args...))
}

func (r *report) add(path string, line int, text string) {
	if r.full() {
		r.more++
		return
	}
	r.problems = append(r.problems, Problem{line, r.subject, path, text})
}

// full reports whether further problems are only counted.
func (r *report) full() bool { return len(r.problems) >= maxProblems }

// invalid adds a problem of a decoded value. It adds nothing if the value was decoded incompletely.
func (r *report) invalid(path, format string, args ...any) {
	if !r.faulty[path] {
		r.add(path, r.line(path), fmt.Sprintf(format, args...))
	}
}

// missing adds a problem for a required value, unless its object was decoded incompletely: then the
// value may be there under a misspelt name.
func (r *report) missing(path, hint string) {
	if !r.faulty[fields.Parent(path)] {
		r.invalid(path, "missing%s", hint)
	}
}

// line returns the line of path, or else of the nearest object around it.
func (r *report) line(path string) int {
	for ; path != ""; path = fields.Parent(path) {
		if line, ok := r.lines[path]; ok {
			return line
		}
	}
	return r.lines[""]
}

// sorted returns the problems in the order of their lines.
func (r *report) sorted() []Problem {
	slices.SortFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Text, b.Text))
	})
	return r.problems
}
