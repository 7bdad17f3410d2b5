// Package version says which Husk this is.
package version

import (
	"runtime"
	"runtime/debug"
)

// Version is set by the linker: see the Makefile.
var Version = "unknown"

// Commit returns the revision that the binary was built from, if Go recorded it.
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

// Go returns the version of Go that built the binary, and for what.
func Go() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }
