package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/continuity/fs"
	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
)

// tree is the directory that an archive is unpacked into. Files are created relative to the open
// directory that they are in: to look up their whole paths, several times each, took a third of the
// time. The kernel resolves the paths of directories, and keeps them below the root.
type tree struct {
	dir  string
	root int // file descriptor of dir
	// last is the directory of the last entry and lastFD its file descriptor, or -1. The entries of
	// a directory usually follow each other.
	last   string
	lastFD int
	// dirs are the archive's directories. Their times are set at the end, because entries in them
	// change them.
	dirs    []dirTimes
	implied Implied
	buf     []byte
}

type dirTimes struct {
	name  string
	times []unix.Timespec
}

// errInvalid means that an entry can't be unpacked anywhere.
var errInvalid = errors.New("invalid entry")

const (
	whiteoutPrefix = ".wh."
	opaque         = ".wh..wh..opq"
	xattrPrefix    = "SCHILY.xattr."
)

func openTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	const bufferSize = 64 << 10
	return &tree{dir: dir, root: fd, lastFD: -1, implied: Implied{}, buf: make([]byte, bufferSize)}, nil
}

func (t *tree) close() {
	t.leave()
	_ = unix.Close(t.root)
}

// leave closes the directory of the last entry.
func (t *tree) leave() {
	if t.lastFD >= 0 {
		_ = unix.Close(t.lastFD)
	}
	t.lastFD = -1
}

// add unpacks an entry, whose content r has. Whiteouts become those of an overlay.
func (t *tree) add(h *tar.Header, r io.Reader) error {
	name := relative(h.Name)
	if name == "." || h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	in, err := t.enter(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return t.whiteout(in, base, hidden, h)
	}
	if (h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock) && userns.RunningInUserNS() {
		return nil // the kernel doesn't allow it
	}
	if err := t.clear(in, base, h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeReg {
		return t.file(in, base, h, r)
	}
	if err := t.make(in, base, h); err != nil {
		return err
	}
	if err := unix.Fchownat(in, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("chown", err)
	}
	if err := setXattrs(h, func(key string, value []byte) error { return unix.Lsetxattr(inFD(in, base), key, value, 0) }); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink {
		// After chown, which clears bits of the mode.
		if err := unix.Fchmodat(in, base, mode(h), 0); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(in, base, times(h), unix.AT_SYMLINK_NOFOLLOW))
}

// enter returns a file descriptor of a directory, which stays open until the next entry. A
// directory that doesn't exist is created, and becomes implied.
func (t *tree) enter(name string) (int, error) {
	if name == "." {
		return t.root, nil
	}
	if t.lastFD >= 0 && t.last == name {
		return t.lastFD, nil
	}
	fd, err := openIn(t.root, name)
	if errors.Is(err, unix.ENOENT) {
		fd, err = t.imply(name)
	}
	if err != nil {
		return -1, err
	}
	t.leave()
	t.last, t.lastFD = name, fd
	return fd, nil
}

// openIn opens a directory below root. Symbolic links lead no further than to root.
func openIn(root int, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	for {
		fd, err := unix.Openat2(root, name, &how)
		switch {
		case err == nil:
			return fd, nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR): // EAGAIN: a rename or mount somewhere, see openat2(2)
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// imply creates a directory that doesn't exist, and those above it.
func (t *tree) imply(name string) (int, error) {
	resolved, err := fs.RootPath(t.dir, name) // a symbolic link may lead to a missing directory
	if err != nil {
		return -1, err
	}
	resolved, err = filepath.Rel(t.dir, resolved)
	if err != nil {
		return -1, err
	}
	in, err := unix.Dup(t.root)
	if err != nil {
		return -1, os.NewSyscallError("dup", err)
	}
	for at := 0; at < len(resolved); {
		part, _, _ := strings.Cut(resolved[at:], "/")
		at += len(part)
		made := unix.Mkdirat(in, part, 0o755)
		if made == nil {
			// Without the process's umask.
			made = unix.Fchmodat(in, part, 0o755, 0)
		}
		next, err := unix.Openat(in, part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil && made == nil {
			err = t.implied.add(next, resolved[:at])
		}
		_ = unix.Close(in)
		if err != nil {
			return -1, &os.PathError{Op: "mkdir", Path: name, Err: err}
		}
		in = next
		at++ // the slash
	}
	return in, nil
}

// clear removes what is in the way of an entry. A directory stays if the entry is one too.
func (t *tree) clear(in int, base string, h *tar.Header) error {
	if h.Typeflag == tar.TypeReg {
		return nil // file does it
	}
	var st unix.Stat_t
	if err := unix.Fstatat(in, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil
	}
	if h.Typeflag == tar.TypeDir && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	return t.remove(in, base)
}

// remove removes a file or directory.
func (t *tree) remove(in int, base string) error {
	if in == t.root {
		t.leave() // base may have led there
	}
	if err := unix.Unlinkat(in, base, 0); !errors.Is(err, unix.EISDIR) {
		return os.NewSyscallError("unlink", err)
	}
	return os.RemoveAll(inFD(in, base))
}

// file creates a regular file.
func (t *tree) file(in int, base string, h *tar.Header, r io.Reader) (err error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(in, base, flags, 0o600)
	if errors.Is(err, unix.EEXIST) {
		if err := t.remove(in, base); err != nil {
			return err
		}
		fd, err = unix.Openat(in, base, flags, 0o600)
	}
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer func() {
		if e := unix.Close(fd); err == nil {
			err = os.NewSyscallError("close", e)
		}
	}()
	if _, err := io.CopyBuffer(file(fd), r, t.buf); err != nil {
		return err
	}
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return os.NewSyscallError("chown", err)
	}
	if err := setXattrs(h, func(key string, value []byte) error { return unix.Fsetxattr(fd, key, value, 0) }); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, mode(h)); err != nil {
		return os.NewSyscallError("chmod", err)
	}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(in, base, times(h), unix.AT_SYMLINK_NOFOLLOW))
}

// file writes to a file descriptor. An os.File would first try to add it to the poller.
type file int

func (f file) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := unix.Write(int(f), p[written:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return written, os.NewSyscallError("write", err)
		}
		written += max(n, 0)
	}
	return written, nil
}

// make creates a file that has no content.
func (t *tree) make(in int, base string, h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeDir:
		t.dirs = append(t.dirs, dirTimes{relative(h.Name), times(h)})
		err := unix.Mkdirat(in, base, mode(h))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return os.NewSyscallError("mkdir", err)
		}
		return t.implied.remove(in, base)
	case tar.TypeSymlink:
		return os.NewSyscallError("symlink", unix.Symlinkat(h.Linkname, in, base))
	case tar.TypeLink:
		return t.link(in, base, relative(h.Linkname))
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		major, minor := uint32(h.Devmajor), uint32(h.Devminor)
		if int64(major) != h.Devmajor || int64(minor) != h.Devminor {
			return fmt.Errorf("%w: device number %d:%d", errInvalid, h.Devmajor, h.Devminor)
		}
		kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
		return os.NewSyscallError("mknod", unix.Mknodat(in, base, kind|mode(h), int(unix.Mkdev(major, minor))))
	}
	return fmt.Errorf("%w: type %q", errInvalid, h.Typeflag)
}

// link creates a hard link to a file of the archive.
func (t *tree) link(in int, base, target string) error {
	dir := t.root
	if name := path.Dir(target); name != "." {
		var err error
		if dir, err = openIn(t.root, name); err != nil {
			return err
		}
		defer func() { _ = unix.Close(dir) }()
	}
	return os.NewSyscallError("link", unix.Linkat(dir, path.Base(target), in, base, 0))
}

// whiteout hides a file of the layers below, or all of a directory.
func (t *tree) whiteout(in int, base, hidden string, h *tar.Header) error {
	if base == opaque {
		return os.NewSyscallError("setxattr", unix.Fsetxattr(in, "trusted.overlay.opaque", []byte{'y'}, 0))
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return fmt.Errorf("%w: whiteout of nothing", errInvalid)
	}
	if err := unix.Mknodat(in, hidden, unix.S_IFCHR, 0); err != nil {
		return os.NewSyscallError("mknod", err)
	}
	return os.NewSyscallError("chown", unix.Fchownat(in, hidden, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW))
}

// finish sets the times of directories.
func (t *tree) finish() error {
	for _, d := range t.dirs {
		fd, err := openIn(t.root, d.name)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue // a later entry has replaced it
		}
		if err != nil {
			return err
		}
		err = unix.UtimesNanoAt(fd, ".", d.times, 0)
		_ = unix.Close(fd)
		if err != nil {
			return os.NewSyscallError("utimensat", err)
		}
	}
	return nil
}

// mode returns the permissions and special bits of an entry, as in struct stat.
func mode(h *tar.Header) uint32 { return uint32(h.Mode) & 0o7777 }

// times returns the times of access and modification of an entry for utimensat. One that the kernel
// can't represent is the beginning of the epoch.
func times(h *tar.Header) []unix.Timespec {
	accessed := h.AccessTime
	if accessed.Before(h.ModTime) {
		accessed = h.ModTime
	}
	return []unix.Timespec{timespec(accessed), timespec(h.ModTime)}
}

func timespec(t time.Time) unix.Timespec {
	if t.Before(time.Unix(0, 0)) || t.After(time.Unix(0, 1<<63-1)) {
		return unix.Timespec{}
	}
	return unix.NsecToTimespec(t.UnixNano())
}

// inFD returns the path of a file in an open directory, for what has no system call with one.
func inFD(fd int, base string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", fd, base) }

// setXattrs sets the extended attributes of an entry. It ignores those that the file system or the
// kind of file doesn't support, and those of the group trusted, which only the administrator sets.
func setXattrs(h *tar.Header, set func(key string, value []byte) error) error {
	for key, value := range h.PAXRecords {
		key, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok || strings.HasPrefix(key, "trusted.") {
			continue
		}
		err := set(key, []byte(value))
		special := h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir
		if err == nil || errors.Is(err, unix.ENOTSUP) || special && errors.Is(err, unix.EPERM) && strings.HasPrefix(key, "user.") {
			continue
		}
		return fmt.Errorf("set attribute %q: %w", key, err)
	}
	return nil
}
