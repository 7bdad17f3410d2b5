package monitor

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
)

// SupportsSpec reports whether the runtime of a handler supports a version of the runtime spec. A
// runtime without the command "features" supports only versions before 1.1.
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

// older reports whether a version is older than another, by the first two numbers.
func older(version, than string) bool {
	var major, minor, thanMajor, thanMinor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	_, _ = fmt.Sscanf(than, "%d.%d", &thanMajor, &thanMinor)
	return major < thanMajor || major == thanMajor && minor < thanMinor
}
