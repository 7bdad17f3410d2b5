// Package cgroup creates, empties and removes cgroups through the cgroup file system, on v1, hybrid
// and v2 hosts. OCI runtimes create the cgroups of containers. This package does the rest: it
// creates a pod's parent cgroup with its limits, removes what a crash left behind, and kills
// everything that a container ever forked. docs/decisions/0029 says why no library does.
//
// A Tree is one cgroup and all below it. Paths are those of the runtime spec's linux.cgroupsPath:
// absolute, and the same in each hierarchy. Nothing outside of the tree is written to, with two
// exceptions: on v2 the ancestors must delegate their controllers, and a Prewarmer moves this
// process to the cgroup that it is in.
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

// Tree is a cgroup that Husk owns in all hierarchies, and everything below it. Its methods are safe
// for concurrent use.
type Tree struct {
	root string
	host host.Cgroup
	// mounts are the mount points of the hierarchies, each once.
	mounts []string
}

// New returns the tree at root, which need not exist. Root must be an absolute path below the root
// of the hierarchies.
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

// Exists reports whether the cgroup exists in any hierarchy.
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

// owns returns an error unless the cgroup is in the tree.
func (t *Tree) owns(cgroup string) error {
	if cgroup == t.root || strings.HasPrefix(cgroup, t.root+"/") && path.Clean(cgroup) == cgroup {
		return nil
	}
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("cgroup %q is not below %s: not touched", cgroup, t.root))
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

// walk calls visit with dir and each directory below it, parents first. It skips directories that
// are removed meanwhile.
func walk(dir string, visit func(string) error) error {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	if err == nil {
		err = visit(dir)
	}
	// A directory has two links, and one more for each directory in it. So a cgroup without
	// children is recognized without listing its forty files.
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
