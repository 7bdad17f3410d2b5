package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// File of a volume that comes from the manifest.
type File struct {
	Path string // leads down from the volume
	Data []byte
	Mode os.FileMode
}

// The files of such a volume are in a directory beside which a link stands:
// what a reader sees changes as a whole, when the link does. The names are
// those that the kubelet has for them.
const (
	dataLink = "..data"
	newLink  = "..data_tmp"
	dirName  = "..files_"
)

// Write makes the files be those of a volume, and returns its path. Readers see
// all of them as they were or all as they are. It does nothing if they are so
// already. Calls for one volume must not overlap.
func (v Volumes) Write(uid, name string, files []File, group *int64) (string, error) {
	dirs, err := v.dirs(uid)
	if err != nil {
		return "", err
	}
	root := filepath.Join(dirs[1], name)
	if err := write(root, files, group); err != nil {
		return "", fmt.Errorf("volume %s: %w", name, err)
	}
	return root, nil
}

func write(root string, files []File, group *int64) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := own(root, group, 0o755); err != nil {
		return err
	}
	link := filepath.Join(root, dataLink)
	old, err := os.Readlink(link)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old == "" || !same(filepath.Join(root, old), files) {
		if err := replace(root, files, group); err != nil {
			return err
		}
	}
	return tidy(root, files)
}

// replace puts the files into a new directory and has the link lead there.
func replace(root string, files []File, group *int64) error {
	dir, err := os.MkdirTemp(root, dirName)
	if err != nil {
		return err
	}
	if err := own(dir, group, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := place(dir, f, group); err != nil {
			return err
		}
	}
	fresh := filepath.Join(root, newLink)
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(dir), fresh); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(root, dataLink))
}

func place(dir string, f File, group *int64) error {
	path := filepath.Join(dir, f.Path)
	for i, c := range f.Path {
		if c != '/' {
			continue
		}
		sub := filepath.Join(dir, f.Path[:i])
		if err := os.Mkdir(sub, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := own(sub, group, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, f.Data, 0o600); err != nil {
		return err
	}
	mode := f.Mode
	if group != nil {
		mode |= 0o440
	}
	return own(path, group, mode)
}

// same says whether a directory has these files and no other.
func same(dir string, files []File) bool {
	var found []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			found = append(found, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil || len(found) != len(files) {
		return false
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Path))
		if err != nil || !slices.Contains(found, f.Path) || !bytes.Equal(data, f.Data) {
			return false
		}
	}
	return true
}

// tidy makes the links by which users find the files, and removes those to files
// that are no more and what an interrupted Write left.
func tidy(root string, files []File) error {
	current, err := os.Readlink(filepath.Join(root, dataLink))
	if err != nil {
		return err
	}
	wanted := map[string]bool{dataLink: true, current: true}
	for _, f := range files {
		first, _, _ := strings.Cut(f.Path, "/")
		wanted[first] = true
		err := os.Symlink(filepath.Join(dataLink, first), filepath.Join(root, first))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !wanted[e.Name()] {
			if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// own gives a file its mode and, if there is one, the group of the pod. A
// directory of the group gives it to what is made in it.
func own(path string, group *int64, mode os.FileMode) error {
	if group == nil {
		return os.Chmod(path, mode)
	}
	if err := os.Chown(path, -1, int(*group)); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		mode |= os.ModeSetgid | 0o070
	}
	return os.Chmod(path, mode)
}

// SubPath makes a part of a volume available by itself, at a path that is
// returned: what is there is mounted as it is now, whatever links the pod makes
// lead elsewhere. If nothing is there, a directory is made. The mount is named
// by the container and the index of its mount, and replaces an earlier one.
func (v Volumes) SubPath(uid, volume, part, name string) (string, error) {
	dirs, err := v.dirs(uid)
	if err != nil {
		return "", err
	}
	if strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("%q can't name a mount", name)
	}
	target := filepath.Join(dirs[2], name)
	if err := bindPart(volume, part, target); err != nil {
		return "", fmt.Errorf("subPath %s: %w", part, err)
	}
	return target, nil
}

func bindPart(volume, part, target string) error {
	fd, err := openPart(volume, filepath.Clean(part))
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

// beneath keeps the kernel from following a link out of the volume, also one
// that is made at this moment.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

var errLeadsOut = errors.New("leads out of the volume: let its links lead down from where they are")

// openPart opens a part of a volume, making the directories that are missing
// with the mode and the owner of the volume's own.
func openPart(volume, part string) (int, error) {
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
		fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: beneath})
		if errors.Is(err, unix.EXDEV) {
			return -1, errLeadsOut
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
		err = makeIn(above, parts[i], &st)
		_ = unix.Close(above)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
	}
	return open(part)
}

func makeIn(dir int, name string, like *unix.Stat_t) error {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, int(like.Uid), int(like.Gid)); err != nil {
		return err
	}
	return unix.Fchmod(fd, like.Mode&0o7777)
}
