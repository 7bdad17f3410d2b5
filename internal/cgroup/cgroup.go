// Package cgroup makes, empties and removes cgroups through the cgroup file
// system, on v1, hybrid and v2 hosts alike. The OCI runtimes make the cgroups
// of containers; this package serves what lies around them: a pod's parent
// cgroup with its limits, what a crash left behind, and killing everything
// that a container ever forked.
//
// A Tree is one cgroup and all below it. Paths are those of the runtime spec's
// linux.cgroupsPath: absolute, the same in each hierarchy. Nothing outside the
// tree is ever written to, except that on v2 the ancestors must hand the
// controllers down, and that a Prewarmer moves this process to where it is.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/host"
)

// Tree is a cgroup of ours in all hierarchies, and everything below it. Its
// methods are safe for concurrent use.
type Tree struct {
	root string
	host host.Cgroup
	// mounts are the mount points of the hierarchies, each once.
	mounts []string
}

// New returns the tree at root, whether it exists or not. Root must be an
// absolute path and can't be the root of the hierarchies.
func New(c host.Cgroup, root string) (*Tree, error) {
	if !path.IsAbs(root) || path.Clean(root) != root || root == "/" {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("cgroup %q: want a clean absolute path below /", root))
	}
	t := &Tree{root: root, host: c}
	for _, point := range c.Mounts {
		if !slices.Contains(t.mounts, point) {
			t.mounts = append(t.mounts, point)
		}
	}
	slices.Sort(t.mounts)
	return t, nil
}

// Root returns the path of the tree's topmost cgroup.
func (t *Tree) Root() string { return t.root }

// Exists says whether the cgroup is there in any hierarchy.
func (t *Tree) Exists(cgroup string) bool {
	return t.owns(cgroup) == nil && len(t.dirs(cgroup)) > 0
}

// List returns all cgroups below the root of the tree, parents before children.
func (t *Tree) List() ([]string, error) {
	var out []string
	for _, dir := range t.dirs(t.root) {
		err := walk(dir, func(sub string) error {
			if rel, _ := filepath.Rel(dir, sub); rel != "." {
				out = append(out, path.Join(t.root, rel))
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list cgroups below %s: %w", t.root, err)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// owns refuses what is not in the tree.
func (t *Tree) owns(cgroup string) error {
	if cgroup == t.root || strings.HasPrefix(cgroup, t.root+"/") && path.Clean(cgroup) == cgroup {
		return nil
	}
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("cgroup %q is not below %s, which is ours: left alone", cgroup, t.root))
}

// dirs returns the directories of a cgroup, one for each hierarchy that has it.
func (t *Tree) dirs(cgroup string) []string {
	var out []string
	for _, mount := range t.mounts {
		dir := filepath.Join(mount, cgroup)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			out = append(out, dir)
		}
	}
	return out
}

// walk calls visit with dir and each directory below it, parents first. What
// vanishes meanwhile is passed over.
func walk(dir string, visit func(string) error) error {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	if err == nil {
		err = visit(dir)
	}
	// A directory is linked to by its name, by itself and by each directory in
	// it: that saves listing the forty files of a cgroup that has no other.
	const leaf = 2
	if err != nil || st.Nlink == leaf {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := walk(filepath.Join(dir, e.Name()), visit); err != nil {
				return err
			}
		}
	}
	return nil
}
