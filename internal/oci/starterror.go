package oci

import "strings"

// StartError is a runtime's refusal to start a program, with the runtime's message.
type StartError struct {
	// Code is the exit status that a shell would return: 127 if the program doesn't exist, 126 if
	// it can't be executed, 128 for anything else.
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *StartError) Error() string { return e.Message }

// NewStartError returns a StartError with a runtime's message and the code that it implies.
func NewStartError(message string) error {
	e := &StartError{Code: 128, Message: OneLine(message)}
	if e.Message == "" {
		e.Message = "the runtime refused without an error message"
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

// OneLine joins the lines of a program's output, and truncates it.
func OneLine(s string) string {
	const longest = 2048
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	s = strings.TrimSpace(s)
	if len(s) > longest {
		s = s[:longest] + "…"
	}
	return s
}
