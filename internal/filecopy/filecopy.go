// Package filecopy copies files between a running container and a tar stream, or the local file
// system and one. The container needs no tar program, and what it does meanwhile never leads to a
// file outside of it: paths are resolved below its root by openat2(2), and the files themselves are
// opened without following symbolic links.
//
// A stream has the copied file or directory as its first entry, with the name ".", and what is in
// the directory below it. A stream of another program is taken as the content of a directory.
package filecopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
)

// Tree is a tree of files. Close closes it.
type Tree struct {
	root *os.File
	// uid and gid of the tree's root user, which owns new files. They aren't 0 in a user namespace.
	uid, gid int
}

// Local returns the file system of this process. New files are the user's.
func Local() (*Tree, error) {
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	return &Tree{root: root}, err
}

// Container returns the files that a container's process sees, with its mounts.
func Container(p oci.Process) (*Tree, error) {
	alive, err := pidfd.Open(p)
	if err != nil {
		return nil, err
	}
	defer alive.Close()
	t := &Tree{}
	if t.uid, err = rootIn(fmt.Sprintf("/proc/%d/uid_map", p.PID)); err != nil {
		return nil, err
	}
	if t.gid, err = rootIn(fmt.Sprintf("/proc/%d/gid_map", p.PID)); err != nil {
		return nil, err
	}
	if t.root, err = os.OpenFile(fmt.Sprintf("/proc/%d/root", p.PID), unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	// If the process is still there, none of these was another one's with the same PID.
	now, err := pidfd.Identify(p.PID)
	if err == nil && now != p {
		err = pidfd.ErrGone
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// rootIn returns the ID on the host of ID 0 in a user namespace.
func rootIn(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var inside, outside, length int
		if n, _ := fmt.Sscan(line, &inside, &outside, &length); n == 3 && inside == 0 {
			return outside, nil
		}
	}
	return 0, errdefs.ErrFailedPrecondition.WithMessage("its user namespace has no root user, who would own new files")
}

// Close closes the tree.
func (t *Tree) Close() error { return t.root.Close() }

// Source is what is copied, as its path says. The path of a directory that ends with "/." means
// what is in the directory, as with cp(1).
type Source struct {
	Base     string // its name; empty for the root
	Contents bool   // only what is in the directory
}

// SourceOf returns the source that an absolute path means.
func SourceOf(name string) Source {
	base := path.Base(path.Clean("/" + name))
	if base == "/" {
		return Source{Contents: true}
	}
	return Source{base, strings.HasSuffix(name, "/.")}
}

// open opens a path of the tree with O_PATH. It follows a symbolic link at the end of the path if
// follow is set.
func (t *Tree) open(name string, follow bool) (*os.File, error) {
	flags := unix.O_PATH | unix.O_NOFOLLOW
	if follow {
		flags = unix.O_PATH
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	return openAt(t.root, name, how)
}

// below opens a directory below dir with O_PATH. No part of the path may be a symbolic link.
func below(dir *os.File, name string) (*os.File, error) {
	return openAt(dir, name, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

func openAt(dir *os.File, name string, how unix.OpenHow) (*os.File, error) {
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // a rename came in between, see openat2(2)
			continue
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

// reopen opens what an O_PATH file stands for. The flags must not include O_CREAT.
func reopen(f *os.File, flags int) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// asOwner calls fn so that new files belong to the tree's root user.
func (t *Tree) asOwner(fn func() error) error {
	if t.uid == 0 && t.gid == 0 {
		return fn()
	}
	return netns.OnThread(func() error {
		// Changing the user takes away the capabilities for files, but not the permission to take
		// them back: see capabilities(7).
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		if err := unix.Capget(&header, &sets[0]); err != nil {
			return fmt.Errorf("capget: %w", err)
		}
		if err := errors.Join(unix.Setfsgid(t.gid), unix.Setfsuid(t.uid)); err != nil {
			return fmt.Errorf("setfsuid: %w", err)
		}
		if err := unix.Capset(&header, &sets[0]); err != nil {
			return fmt.Errorf("capset: %w", err)
		}
		return fn()
	})
}
