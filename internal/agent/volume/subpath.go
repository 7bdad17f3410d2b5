package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// SubPath mounts a part of a volume and returns the path of the mount. Links that the pod changes
// later don't affect it. If the part doesn't exist it is created as a directory. name identifies
// the mount: the container and the index of its volumeMount. An earlier mount of that name is
// replaced.
func (v Volumes) SubPath(uid, volume, part, name string) (string, error) {
	dirs, err := v.dirs(uid)
	if err != nil {
		return "", err
	}
	if strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("%q is not a valid name of a mount", name)
	}
	target := filepath.Join(dirs[2], name)
	if err := bindSubPath(volume, part, target); err != nil {
		return "", fmt.Errorf("subPath %s: %w", part, err)
	}
	return target, nil
}

func bindSubPath(volume, part, target string) error {
	fd, err := openSubPath(volume, filepath.Clean(part))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := unmountBelow(target); err != nil {
		return err
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(target, 0o700)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind at %s: %w", target, err)
	}
	return nil
}

// resolveBeneath makes the kernel refuse links out of the volume, even those that are created
// during the call.
const resolveBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

var errEscapes = errors.New("leads out of the volume: use only links to paths inside it")

// openSubPath opens a part of a volume. It creates missing directories with the mode and owner of
// the volume's root.
func openSubPath(volume, part string) (int, error) {
	root, err := unix.Open(volume, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return -1, err
	}
	open := func(path string) (int, error) {
		fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolveBeneath})
		if errors.Is(err, unix.EXDEV) {
			return -1, errEscapes
		}
		return fd, err
	}
	fd, err := open(part)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	parts := strings.Split(part, "/")
	for i := range parts {
		above, err := open(filepath.Join(".", filepath.Join(parts[:i]...)))
		if err != nil {
			return -1, err
		}
		err = mkdirLike(above, parts[i], &st)
		_ = unix.Close(above)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
	}
	return open(part)
}

func mkdirLike(dir int, name string, like *unix.Stat_t) error {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return err
	}
	return makeLike(dir, name, like)
}

// makeLike gives a directory that was just made the owner and mode of the volume's root. A pod may
// have put another directory in its place, one that it could rename but not read: that is refused.
func makeLike(dir int, name string, like *unix.Stat_t) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	made := os.NewFile(uintptr(fd), name)
	defer made.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if names, _ := made.Readdirnames(1); int(st.Uid) != os.Geteuid() || len(names) > 0 {
		return fmt.Errorf("%s was replaced while it was made", name)
	}
	if err := unix.Fchown(fd, int(like.Uid), int(like.Gid)); err != nil {
		return err
	}
	return unix.Fchmod(fd, like.Mode&0o7777)
}
