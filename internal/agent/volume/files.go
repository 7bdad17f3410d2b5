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
	dataLink  = "..data"
	tmpLink   = "..data_tmp"
	dirPrefix = "..files_"
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
	if err := setOwner(root, group, 0o755); err != nil {
		return err
	}
	link := filepath.Join(root, dataLink)
	old, err := os.Readlink(link)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old == "" || !sameFiles(filepath.Join(root, old), files) {
		if err := replace(root, files, group); err != nil {
			return err
		}
	}
	return updateLinks(root, files)
}

// replace puts the files into a new directory and has the link lead there.
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
	mode := f.Mode
	if group != nil {
		mode |= 0o440
	}
	return setOwner(path, group, mode)
}

// sameFiles says whether a directory has these files and no other.
func sameFiles(dir string, files []File) bool {
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

// updateLinks makes the links by which users find the files, and removes those to files
// that are no more and what an interrupted Write left.
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

// setOwner gives a file its mode and, if there is one, the group of the pod. A
// directory of the group gives it to what is made in it.
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
