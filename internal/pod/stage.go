package pod

import "errors"

// StageError is an error in a stage of a sandbox or container. Its text is only that of Err. The
// other fields are for logs.
type StageError struct {
	Sandbox   string
	Container string // empty if the sandbox failed
	Stage     string
	Err       error
}

// Error returns the text of Err.
func (f *StageError) Error() string { return f.Err.Error() }

// Unwrap returns Err.
func (f *StageError) Unwrap() error { return f.Err }

// LogAttrs returns alternating names and values for the log line of err: the sandbox, container and
// stage of a StageError, and nothing for other errors.
func LogAttrs(err error) []any {
	f, ok := errors.AsType[*StageError](err)
	if !ok {
		return nil
	}
	attrs := []any{"sandbox", Short(f.Sandbox)}
	if f.Container != "" {
		attrs = append(attrs, "container", Short(f.Container))
	}
	return append(attrs, "stage", f.Stage)
}
