package pod

import "errors"

// StageError is an error of a stage in the life of a sandbox, or of a container in
// it. Its text is that of the error alone: what it names besides is for logs.
type StageError struct {
	Sandbox   string
	Container string // empty if it is the sandbox that failed
	Stage     string
	Err       error
}

// Error is the error's own text.
func (f *StageError) Error() string { return f.Err.Error() }

// Unwrap returns the error.
func (f *StageError) Unwrap() error { return f.Err }

// LogAttrs returns what a log line of err is to have beside it: names and values in
// turn, none if it is of no stage.
func LogAttrs(err error) []any {
	f, ok := errors.AsType[*StageError](err)
	if !ok {
		return nil
	}
	where := []any{"sandbox", Short(f.Sandbox)}
	if f.Container != "" {
		where = append(where, "container", Short(f.Container))
	}
	return append(where, "stage", f.Stage)
}
