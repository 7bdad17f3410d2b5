package monitor

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
)

// Knows says whether the runtime of a handler knows a version of the runtime
// spec. One that doesn't say which it knows, by its command features, knows those
// before 1.1 only.
func (h Handlers) SupportsSpec(ctx context.Context, handler, version string) bool {
	runtime, err := h.Get(handler)
	if err != nil {
		return false
	}
	features := struct {
		Max string `json:"ociVersionMax"`
	}{"1.0.0"}
	if out, err := exec.CommandContext(ctx, runtime.Path, "features").Output(); err == nil {
		_ = json.Unmarshal(out, &features)
	}
	return !older(features.Max, version)
}

// older says whether a version is older than another, by their first two numbers.
func older(version, than string) bool {
	var major, minor, thanMajor, thanMinor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	_, _ = fmt.Sscanf(than, "%d.%d", &thanMajor, &thanMinor)
	return major < thanMajor || major == thanMajor && minor < thanMinor
}
