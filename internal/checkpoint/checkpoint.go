// Package checkpoint writes and reads archives of checkpoints: CRIU's images of a container's
// processes, the files that they had changed, and a description of the container. The names in an
// archive are those of Podman, CRI-O and checkpointctl, so that each can read the others'.
package checkpoint

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// The names in an archive, as in package metadata of checkpoint-restore/checkpointctl.
const (
	processes = "checkpoint"      // directory of CRIU's images
	about     = "config.dump"     // Info as JSON
	spec      = "spec.dump"       // the runtime spec
	changes   = "rootfs-diff.tar" // the writable layer, as an OCI layer
	deleted   = "deleted.files"   // paths that the layer hides, from tools whose layers have no whiteouts
)

// Info describes the container of a checkpoint.
type Info struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	ImageName string    `json:"rootfsImageName,omitempty"`
	Image     string    `json:"rootfsImage,omitempty"`
	ImageRef  string    `json:"rootfsImageRef,omitempty"`
	Runtime   string    `json:"runtime,omitempty"`
	Created   time.Time `json:"createdTime"`
	At        time.Time `json:"checkpointedTime"`
}

// Names returns the names of the image that the container ran, most specific first.
func (i Info) Names() (list []string) {
	for _, name := range []string{i.ImageRef, i.ImageName, i.Image} {
		if name != "" {
			list = append(list, name)
		}
	}
	return list
}

// Dir is an unpacked checkpoint, by the path of its directory.
type Dir string

// Processes returns the directory of CRIU's images.
func (d Dir) Processes() string { return filepath.Join(string(d), processes) }

// Is reports whether a directory, such as a layer of an image, is a checkpoint.
func (d Dir) Is() bool {
	for _, name := range []string{about, spec, filepath.Join(processes, "inventory.img")} {
		if info, err := os.Lstat(filepath.Join(string(d), name)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// Request is the container that a checkpoint is made of.
type Request struct {
	Info
	Spec  []byte // the runtime spec, as in the bundle
	Upper string // directory of the writable layer
	// Dump makes CRIU write the processes into a directory. It calls whileStopped while they can't
	// change their files.
	Dump func(ctx context.Context, into string, whileStopped func() error) error
}

// Write writes an archive to path. On error nothing is left.
func Write(ctx context.Context, r Request, path string) error {
	if err := writable(path); err != nil {
		return err
	}
	// The complete archive is renamed to path, so it is written on the same file system.
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".checkpoint-*")
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	defer os.RemoveAll(tmp)
	d := Dir(tmp)
	if err := os.Mkdir(d.Processes(), 0o700); err != nil {
		return err
	}
	if err := r.Dump(ctx, d.Processes(), func() error { return d.describe(r) }); err != nil {
		return err
	}
	return d.pack(path)
}

// writable returns an error if no file can be written to path.
func writable(path string) error {
	file, err := os.Lstat(path)
	above, aboveErr := os.Stat(filepath.Dir(path))
	switch {
	case err == nil && !file.Mode().IsRegular():
		err = errors.New("what exists there is not a file")
	case errors.Is(err, fs.ErrNotExist) && aboveErr == nil && above.IsDir():
		return nil
	}
	if err != nil {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("a checkpoint can't be written to %.300q: %v", path, err))
	}
	return nil
}

// describe adds the description of the container and its changed files.
func (d Dir) describe(r Request) error {
	r.At = time.Now()
	data, err := json.Marshal(r.Info)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{about: data, spec: r.Spec} {
		if err := os.WriteFile(filepath.Join(string(d), name), content, 0o600); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(string(d), changes), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(writeLayer(f, r.Upper), f.Close())
}

// maxInfo is the largest size of a file that describes a container.
const maxInfo = 4 << 20

// Info reads what the container was.
func (d Dir) Info() (info Info, err error) {
	data, err := d.read(about)
	if err == nil {
		err = json.Unmarshal(data, &info)
	}
	if err != nil {
		return info, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its %s can't be read: %v", about, err))
	}
	if len(info.Names()) == 0 {
		return info, errdefs.ErrInvalidArgument.WithMessage("it doesn't name the image that the container ran: make it with Podman, CRI-O, containerd or Husk")
	}
	return info, nil
}

// read reads a file of the checkpoint, which is not trusted.
func (d Dir) read(name string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(string(d), name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxInfo {
		return nil, fmt.Errorf("it is not a file of at most %d bytes", maxInfo)
	}
	return io.ReadAll(f)
}

// Restore makes the changes of the container's files below root.
func (d Dir) Restore(ctx context.Context, root string) error {
	if data, err := d.read(deleted); err == nil {
		var paths []string
		if err := json.Unmarshal(data, &paths); err != nil {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its %s is not a list of paths: %v", deleted, err))
		}
		for _, path := range paths {
			if err := removeInside(root, path); err != nil {
				return err
			}
		}
	}
	f, err := os.OpenFile(filepath.Join(string(d), changes), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := archive.Apply(ctx, root, f); err != nil {
		return fmt.Errorf("its %s: %w", changes, err)
	}
	return nil
}

// removeInside removes path below root. Symlinks are followed within root.
func removeInside(root, path string) error {
	dir, err := pathrs.OpenInRoot(root, filepath.Dir(filepath.Clean("/"+path)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(filepath.Clean("/" + path))
	if name == "/" {
		return nil
	}
	return os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name))
}

// pack writes the directory as an archive to path, by renaming the complete file.
func (d Dir) pack(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".checkpoint-*.tar")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	w := tar.NewWriter(f)
	err = errors.Join(w.AddFS(os.DirFS(string(d))), w.Close(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Unpack unpacks an archive into a directory that is empty or doesn't exist.
func Unpack(ctx context.Context, path, into string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("checkpoint %s: no such file", path))
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("checkpoint %s: it is not a file", path))
	}
	if err := os.MkdirAll(into, 0o700); err != nil {
		return err
	}
	if _, err := archive.Apply(ctx, into, f, archive.WithNoSameOwner()); err != nil {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("checkpoint %s: it can't be unpacked: %v", path, err))
	}
	if !Dir(into).Is() {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("checkpoint %s: it lacks %s, %s or CRIU's %s", path, about, spec, processes))
	}
	return nil
}
