// Package systemd translates between cgroups and the units of systemd that have
// them: the slices of pods and the scopes of containers. It is pure. A cgroup is
// everywhere else the path that it has in the file system, which follows from
// the names of the units; the runtimes, which ask systemd for a scope, take
// SLICE:PREFIX:NAME.
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
	// root is the slice that all others are below.
	root = "-.slice"
	// longest is what systemd takes for a unit's name.
	longest = 255
)

// IsSlice says whether a cgroup is that of a slice.
func IsSlice(cgroup string) bool { return strings.HasSuffix(cgroup, slice) }

// Path returns the cgroup of a slice: a-b.slice is /a.slice/a-b.slice.
func Path(name string) (string, error) {
	if name == root {
		return "/", nil
	}
	stem, ok := strings.CutSuffix(name, slice)
	if !ok || stem == "" || len(name) > longest || strings.ContainsFunc(stem, unfit) {
		return "", fmt.Errorf("%.80q is not the name of a slice, such as kubepods-burstable.slice", name)
	}
	out, above := "", ""
	for part := range strings.SplitSeq(stem, "-") {
		if part == "" {
			return "", fmt.Errorf("%.80q is not the name of a slice: between two - there must be a name", name)
		}
		above += part
		out += "/" + above + slice
		above += "-"
	}
	return out, nil
}

// unfit is what a unit's name can't have, by systemd.unit(5).
func unfit(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letter && !strings.ContainsRune(`:-_.\@`, r)
}

// Unit is how a runtime is told of a scope's cgroup; ok is false for a cgroup
// that is none.
func Unit(cgroup string) (unit string, ok bool) {
	name, isScope := strings.CutSuffix(path.Base(cgroup), scope)
	id, ours := strings.CutPrefix(name, pod.ScopePrefix+"-")
	above := path.Base(path.Dir(cgroup))
	if where, err := Path(above); !isScope || !ours || err != nil || where != path.Dir(cgroup) {
		return "", false
	}
	return above + ":" + pod.ScopePrefix + ":" + id, true
}

// Cgroup is what Unit was made of.
func Cgroup(unit string) (cgroup string, ok bool) {
	parts := strings.Split(unit, ":")
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" || strings.Contains(unit, "/") {
		return "", false
	}
	parent, err := Path(parts[0])
	if err != nil {
		return "", false
	}
	return path.Join(parent, parts[1]+"-"+parts[2]+scope), true
}
