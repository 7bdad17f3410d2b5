// Package systemd converts between cgroups and systemd units: the slices of pods and the scopes
// of containers. It is pure. Elsewhere in Husk a cgroup is its path in the file system, which
// follows from the units' names. Runtimes, which ask systemd for a scope, take SLICE:PREFIX:NAME
// instead.
package systemd

import (
	"fmt"
	"path"
	"strings"

	"github.com/huskd/husk/internal/pod"
)

const (
	slice = ".slice"
	scope = ".scope"
	// root is the slice above all others.
	root = "-.slice"
	// maxName is the maximum length of a unit's name.
	maxName = 255
)

// IsSlice reports whether a cgroup is that of a slice.
func IsSlice(cgroup string) bool { return strings.HasSuffix(cgroup, slice) }

// Path returns the cgroup of a slice: a-b.slice is /a.slice/a-b.slice.
func Path(name string) (string, error) {
	if name == root {
		return "/", nil
	}
	stem, ok := strings.CutSuffix(name, slice)
	if !ok || stem == "" || len(name) > maxName || strings.ContainsFunc(stem, invalid) {
		return "", fmt.Errorf("%.80q is not the name of a slice, such as kubepods-burstable.slice", name)
	}
	out, above := "", ""
	for part := range strings.SplitSeq(stem, "-") {
		if part == "" {
			return "", fmt.Errorf("%.80q is not the name of a slice: it has an empty part", name)
		}
		above += part
		out += "/" + above + slice
		above += "-"
	}
	return out, nil
}

// invalid reports whether a unit's name can't contain r: see systemd.unit(5).
func invalid(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letter && !strings.ContainsRune(`:-_.\@`, r)
}

// Unit returns the SLICE:PREFIX:NAME of a scope's cgroup; not ok if the cgroup isn't that of one of
// Husk's scopes.
func Unit(cgroup string) (unit string, ok bool) {
	name, isScope := strings.CutSuffix(path.Base(cgroup), scope)
	id, ours := strings.CutPrefix(name, pod.ScopePrefix+"-")
	above := path.Base(path.Dir(cgroup))
	if where, err := Path(above); !isScope || !ours || err != nil || where != path.Dir(cgroup) {
		return "", false
	}
	return above + ":" + pod.ScopePrefix + ":" + id, true
}
