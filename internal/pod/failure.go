package pod

import "errors"

// Failure is an error of a stage in the life of a sandbox, or of a container in
// it. Its text is that of the error alone: what it names besides is for logs.
type Failure struct {
	Sandbox   string
	Container string // empty if it is the sandbox that failed
	Stage     string
	Err       error
}

// Error is the error's own text.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the error.
func (f *Failure) Unwrap() error { return f.Err }

// Where returns what a log line of err is to have beside it: names and values in
// turn, none if it is of no stage.
func Where(err error) []any {
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		return nil
	}
	where := []any{"sandbox", Short(f.Sandbox)}
	if f.Container != "" {
		where = append(where, "container", Short(f.Container))
	}
	return append(where, "stage", f.Stage)
}
