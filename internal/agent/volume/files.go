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

// File is a file of a volume whose content comes from the manifest.
type File struct {
	Path string // relative to the volume
	Data []byte
	Mode os.FileMode
	User *int64 // the owner; nil is root
}

// mode returns the mode of the file in a volume of the group.
func (f File) mode(group *int64) os.FileMode {
	if group == nil {
		return f.Mode
	}
	return f.Mode | 0o440
}

// The files are in a directory that the link ..data points to. All files change at once when the
// link is replaced. The names are kubelet's.
const (
	dataLink  = "..data"
	tmpLink   = "..data_tmp"
	dirPrefix = "..files_"
)

// Write sets the files of a volume and returns its path. Readers see either all old or all new
// files. It changes nothing if the files are the same. Calls for the same volume must not overlap.
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
	if err := setOwner(root, group, 0o755); err != nil {
		return err
	}
	link := filepath.Join(root, dataLink)
	old, err := os.Readlink(link)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old == "" || !sameFiles(filepath.Join(root, old), files, group) {
		if err := replace(root, files, group); err != nil {
			return err
		}
	}
	return updateLinks(root, files)
}

// replace writes the files to a new directory and points the link to it.
func replace(root string, files []File, group *int64) error {
	dir, err := os.MkdirTemp(root, dirPrefix)
	if err != nil {
		return err
	}
	if err := setOwner(dir, group, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := writeFile(dir, f, group); err != nil {
			return err
		}
	}
	fresh := filepath.Join(root, tmpLink)
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(dir), fresh); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(root, dataLink))
}

func writeFile(dir string, f File, group *int64) error {
	path := filepath.Join(dir, f.Path)
	for i, c := range f.Path {
		if c != '/' {
			continue
		}
		sub := filepath.Join(dir, f.Path[:i])
		if err := os.Mkdir(sub, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := setOwner(sub, group, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, f.Data, 0o600); err != nil {
		return err
	}
	if f.User != nil {
		if err := os.Chown(path, int(*f.User), -1); err != nil {
			return err
		}
	}
	return setOwner(path, group, f.mode(group))
}

// sameFiles reports whether a directory has exactly these files, with these modes and owners.
func sameFiles(dir string, files []File, group *int64) bool {
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
		owner := int64(os.Geteuid())
		if f.User != nil {
			owner = *f.User
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, f.Path), &st); err != nil || os.FileMode(st.Mode&0o777) != f.mode(group) || int64(st.Uid) != owner {
			return false
		}
	}
	return true
}

// updateLinks creates the links through which the files are found. It removes links to former
// files, and what an interrupted Write has left.
func updateLinks(root string, files []File) error {
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

// setOwner sets the mode of a file and, if group is not nil, its group. New files in a directory
// inherit its group.
func setOwner(path string, group *int64, mode os.FileMode) error {
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
