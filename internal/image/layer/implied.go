package layer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Implied are the directories of an unpacked archive that have no entry of their own: their paths
// from the layer's directory, by inode. They keep the attributes that the layers below give
// them.
type Implied map[uint64]string

func (i Implied) add(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	i[st.Ino] = name
	return nil
}

// remove removes a directory that has an entry of its own after all.
func (i Implied) remove(in int, base string) error {
	if len(i) == 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(in, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("stat", err)
	}
	delete(i, st.Ino)
	return nil
}

// Inherit gives the implied directories of the layer in dir the attributes that they have in below,
// the directories of the layers below, topmost first. A directory that is new keeps mode 0755.
func (i Implied) Inherit(dir string, below []string) error {
	if len(i) == 0 || len(below) == 0 {
		return nil
	}
	roots, err := openRoots(append([]string{dir}, below...))
	defer func() {
		for _, fd := range roots {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	for ino, name := range i {
		if err := inherit(roots[0], roots[1:], ino, name); err != nil {
			return fmt.Errorf("directory %q: %w", name, err)
		}
	}
	return nil
}

func openRoots(dirs []string) (fds []int, err error) {
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fds, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// inherit copies the attributes of a directory from the first layer that has it.
func inherit(root int, below []int, ino uint64, name string) error {
	to, err := openIn(root, name)
	if absent(err) {
		return nil // a later entry has replaced it
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(to) }()
	var st unix.Stat_t
	if err := unix.Fstat(to, &st); err != nil || st.Ino != ino {
		return os.NewSyscallError("stat", err)
	}
	for _, layer := range below {
		from, err := openIn(layer, name)
		switch {
		case errors.Is(err, unix.ENOTDIR): // hidden from here on, by a file or a whiteout
			return nil
		case absent(err):
			continue
		case err != nil:
			return err
		}
		err = copyAttributes(from, to)
		_ = unix.Close(from)
		return err
	}
	return nil
}

func absent(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP}, func(no error) bool { return errors.Is(err, no) })
}

// copyAttributes copies the owner, the mode, the extended attributes and the times of a directory.
func copyAttributes(from, to int) error {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return os.NewSyscallError("chown", err)
	}
	if err := copyXattrs(from, to); err != nil {
		return err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return os.NewSyscallError("chmod", err)
	}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(to, ".", []unix.Timespec{st.Atim, st.Mtim}, 0))
}

// copyXattrs copies extended attributes except those of the group trusted, among which are those of
// overlays.
func copyXattrs(from, to int) error {
	const maxNames, maxValue = 64 << 10, 64 << 10 // XATTR_LIST_MAX, XATTR_SIZE_MAX
	buf := make([]byte, maxNames)
	n, err := unix.Flistxattr(from, buf)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("listxattr", err)
	}
	value := make([]byte, maxValue)
	for key := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if strings.HasPrefix(key, "trusted.") {
			continue
		}
		n, err := unix.Fgetxattr(from, key, value)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENODATA) {
			continue
		}
		if err == nil {
			err = unix.Fsetxattr(to, key, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("copy attribute %q: %w", key, err)
		}
	}
	return nil
}
