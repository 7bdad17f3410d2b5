package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/oci/exectag"
)

// ExecProcess returns the process for an exec: the spec's, with the arguments and the terminal of
// the exec and the tag. Other fields, also unknown ones, stay as they are.
func ExecProcess(spec []byte, args []string, tty bool, tag exectag.Tag) ([]byte, error) {
	var s struct {
		Process map[string]json.RawMessage `json:"process"`
	}
	if err := json.Unmarshal(spec, &s); err != nil {
		return nil, err
	}
	if s.Process == nil {
		return nil, errors.New("its spec has no process")
	}
	var rlimits []exectag.Limit
	var env []string
	for field, value := range map[string]any{"rlimits": &rlimits, "env": &env} {
		if raw, ok := s.Process[field]; ok {
			if err := json.Unmarshal(raw, value); err != nil {
				return nil, fmt.Errorf("its spec's process.%s: %w", field, err)
			}
		}
	}
	hasTerm := func(v string) bool { return strings.HasPrefix(v, "TERM=") }
	if tty && !slices.ContainsFunc(env, hasTerm) {
		env = append(env, "TERM=xterm")
	}
	delete(s.Process, "consoleSize")
	for field, value := range map[string]any{"args": args, "terminal": tty, "rlimits": tag.Add(rlimits), "env": env} {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		s.Process[field] = raw
	}
	return json.Marshal(s.Process)
}
