package oci

import "strings"

// Refusal makes a StartError of what a runtime said.
func NewStartError(message string) error {
	e := &StartError{Code: 128, Message: OneLine(message)}
	if e.Message == "" {
		e.Message = "the runtime refused without a word"
	}
	// runc: exec: "x": executable file not found in $PATH, exec: "/x": stat /x: no such file …
	// crun: executable file `x` not found in $PATH: …, open executable: Permission denied
	// runsc: … failed to load /x: no such file or directory
	lower := strings.ToLower(e.Message)
	if strings.Contains(lower, "exec: \"") || strings.Contains(lower, "executable") || strings.Contains(lower, "failed to load /") {
		switch {
		case strings.Contains(lower, "not found"), strings.Contains(lower, "no such file"):
			e.Code = 127
		case strings.Contains(lower, "permission denied"), strings.Contains(lower, "is a directory"):
			e.Code = 126
		}
	}
	return e
}

// OneLine makes a line of what a program wrote.
func OneLine(s string) string {
	const longest = 2048
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	s = strings.TrimSpace(s)
	if len(s) > longest {
		s = s[:longest] + "…"
	}
	return s
}
