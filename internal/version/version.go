// Package version holds the version of this build.
package version

import (
	"runtime"
	"runtime/debug"
)

// Version is the version of Husk. The linker sets it: see the Makefile.
var Version = "unknown"

// Commit returns the revision that the binary was built from, or "" if Go did not record it.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// Go returns the version of Go that built the binary, and its platform.
func Go() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }
