package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/manifest/fields"
)

// Problem is one thing wrong with a manifest.
type Problem struct {
	// Line in the file, from 1; 0 if it isn't known.
	Line int
	// Subject is the pod ("pod default/web"), or the document of one that has
	// no name; empty for a problem of the file.
	Subject string
	// Path of the field, such as spec.containers[0].image; may be empty.
	Path string
	// Text says what is wrong and what to do.
	Text string
}

// Error is a manifest that was refused. It is of the kind invalid argument and
// has a line of its own for each problem, with the file's name first.
type Error struct {
	File     string
	Problems []Problem
	// More is how many further problems are not listed.
	More int
}

// Error has a line for each problem.
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

// maxProblems that are listed; a file of rubbish has thousands.
const maxProblems = 50

// report collects the problems of one pod.
type report struct {
	subject  string
	lines    map[string]int // of each path that the document has
	problems []Problem
	faulty   map[string]bool // paths of what was not read whole
	more     int             // problems beyond those that will be listed
}

func newReport(subject string) *report {
	return &report{subject: subject, lines: map[string]int{}, faulty: map[string]bool{}}
}

// misread notes a problem of reading: what the object at parent says is then
// not known for sure.
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

// full says that further problems are only counted.
func (r *report) full() bool { return len(r.problems) >= maxProblems }

// invalid notes a problem with a value that was read.
func (r *report) invalid(path, format string, args ...any) {
	if !r.faulty[path] {
		r.add(path, r.line(path), fmt.Sprintf(format, args...))
	}
}

// missing notes a value that has to be there, unless its object was misread:
// then it may be there under a misspelt name.
func (r *report) missing(path, hint string) {
	if !r.faulty[fields.Parent(path)] {
		r.invalid(path, "missing%s", hint)
	}
}

// line of path, or of the nearest object around it.
func (r *report) line(path string) int {
	for ; path != ""; path = fields.Parent(path) {
		if line, ok := r.lines[path]; ok {
			return line
		}
	}
	return r.lines[""]
}

// sorted returns the problems in the order of the file.
func (r *report) sorted() []Problem {
	slices.SortFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Text, b.Text))
	})
	return r.problems
}
