package filecopy

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Write makes the files of a tar stream at an absolute path, as cp -r would: into the path if it is
// a directory, else under the name that it gives. Directories that exist keep their mode. It
// replaces files that exist, but no directory by a file or the reverse.
func (t *Tree) Write(from io.Reader, to string, source Source) error {
	return t.asOwner(func() error {
		w := &writer{tree: t, from: tar.NewReader(from)}
		defer w.close()
		return w.write(to, source)
	})
}

// writer writes the files of one stream.
type writer struct {
	tree *Tree
	from *tar.Reader
	// top is the directory that the names are relative to.
	top   *os.File
	fresh []*tar.Header // new directories, whose mode and time are set in the end
}

func (w *writer) close() {
	if w.top != nil {
		_ = w.top.Close()
	}
}

func (w *writer) write(to string, source Source) error {
	first, err := w.from.Next()
	if errors.Is(err, io.EOF) {
		return errdefs.ErrInvalidArgument.WithMessage("the tar stream is empty")
	}
	if err != nil {
		return fmt.Errorf("read the tar stream: %w", err)
	}
	if path.Clean(first.Name) != "." { // of another program
		if w.top, err = w.tree.directory(to); err != nil {
			return err
		}
		if err := w.add(first); err != nil {
			return err
		}
		return w.addAll()
	}
	parent, name, err := w.tree.target(to, source, first.Typeflag == tar.TypeDir)
	if err != nil {
		return err
	}
	defer parent.Close()
	if first.Typeflag != tar.TypeDir {
		return w.make(parent, name, first)
	}
	if name == "." {
		w.top, err = below(parent, ".")
	} else {
		w.top, err = w.directory(parent, name, first)
	}
	if err != nil {
		return err
	}
	return w.addAll()
}

// target returns the directory in which the first entry of a stream comes, and its name there. The
// name is "." for what goes into that directory itself.
func (t *Tree) target(to string, source Source, directory bool) (parent *os.File, name string, err error) {
	existing, err := t.open(to, true)
	switch {
	case err == nil:
		defer func() {
			if parent != existing {
				_ = existing.Close()
			}
		}()
		info, err := existing.Stat()
		switch {
		case err != nil:
			return nil, "", err
		case info.IsDir() && directory && source.Contents:
			return existing, ".", nil
		case info.IsDir():
			return existing, source.Base, nil
		case directory:
			return nil, "", errdefs.ErrFailedPrecondition.WithMessage(to + " is a file, and a directory can't be copied into it")
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, "", err
	case strings.HasSuffix(to, "/") && !directory:
		return nil, "", errdefs.ErrNotFound.WithMessage("the directory " + to + " doesn't exist")
	}
	clean := path.Clean(to)
	parent, err = t.directory(path.Dir(clean))
	return parent, path.Base(clean), err
}

// directory opens a directory that exists.
func (t *Tree) directory(name string) (*os.File, error) {
	f, err := t.open(name, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.ErrNotFound.WithMessage("the directory " + name + " doesn't exist")
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		_ = f.Close()
		return nil, errors.Join(err, errdefs.ErrFailedPrecondition.WithMessage(name+" is not a directory"))
	}
	return f, nil
}

// addAll adds the other entries.
func (w *writer) addAll() error {
	for {
		h, err := w.from.Next()
		if errors.Is(err, io.EOF) {
			return w.finish()
		}
		if err != nil {
			return fmt.Errorf("read the tar stream: %w", err)
		}
		if err := w.add(h); err != nil {
			return err
		}
	}
}

func (w *writer) add(h *tar.Header) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q in the tar stream is outside of the copied directory", h.Name))
	}
	if name == "." {
		return nil
	}
	parent, err := below(w.top, path.Dir(name))
	if err != nil {
		return explain(path.Dir(name), err)
	}
	defer parent.Close()
	if h.Typeflag != tar.TypeDir {
		return w.make(parent, path.Base(name), h)
	}
	d, err := w.directory(parent, path.Base(name), h)
	if err != nil {
		return err
	}
	return d.Close()
}

func explain(name string, err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return errdefs.ErrFailedPrecondition.WithMessage(name + " is a file or symbolic link, and a directory can't replace it")
	}
	return err
}

// directory makes a directory unless it exists, and opens it.
func (w *writer) directory(parent *os.File, name string, h *tar.Header) (*os.File, error) {
	switch err := unix.Mkdirat(int(parent.Fd()), name, 0o700); {
	case err == nil:
		w.fresh = append(w.fresh, h)
	case !errors.Is(err, unix.EEXIST):
		return nil, &fs.PathError{Op: "mkdir", Path: h.Name, Err: err}
	}
	d, err := below(parent, name)
	if err != nil {
		return nil, explain(name, err)
	}
	return d, nil
}

// make makes anything but a directory.
func (w *writer) make(parent *os.File, name string, h *tar.Header) (err error) {
	switch h.Typeflag {
	case tar.TypeReg:
		err = w.file(parent, name, h)
	case tar.TypeSymlink:
		if err = remove(parent, name); err == nil {
			err = unix.Symlinkat(h.Linkname, int(parent.Fd()), name)
		}
	case tar.TypeLink:
		err = w.link(parent, name, h)
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return errdefs.ErrInvalidArgument.WithMessage(h.Name + " is a device or named pipe: only files, directories and links can be copied")
	}
	if err == nil && h.Typeflag != tar.TypeLink {
		err = setTime(parent, name, h.ModTime)
	}
	if err != nil {
		return &fs.PathError{Op: "copy to", Path: name, Err: err}
	}
	return nil
}

// remove removes what a file replaces. It fails for a directory.
func remove(parent *os.File, name string) error {
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// file makes a regular file. A file that is a mount, as /etc/hosts in a container, is overwritten.
func (w *writer) file(parent *os.File, name string, h *tar.Header) error {
	err := remove(parent, name)
	var f *os.File
	if errors.Is(err, unix.EBUSY) {
		f, err = overwrite(parent, name)
	} else if err == nil {
		var fd int
		fd, err = unix.Openat(int(parent.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		f = os.NewFile(uintptr(fd), name)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(f, w.from)
	if err == nil {
		err = f.Chmod(h.FileInfo().Mode().Perm())
	}
	return errors.Join(err, f.Close())
}

// overwrite opens a regular file that exists, and empties it.
func overwrite(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, unix.EBUSY)
	}
	return reopen(f, unix.O_WRONLY|unix.O_TRUNC)
}

// link makes a hard link to a file of the stream.
func (w *writer) link(parent *os.File, name string, h *tar.Header) error {
	to := path.Clean(h.Linkname)
	if w.top == nil || !filepath.IsLocal(to) {
		return unix.EXDEV
	}
	dir, err := below(w.top, path.Dir(to))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := remove(parent, name); err != nil {
		return err
	}
	return unix.Linkat(int(dir.Fd()), path.Base(to), int(parent.Fd()), name, 0)
}

// finish sets the modes and times of new directories, the innermost first.
func (w *writer) finish() error {
	for _, h := range slices.Backward(w.fresh) {
		d, err := below(w.top, path.Clean(h.Name))
		if err != nil {
			continue // somebody has replaced it
		}
		f, err := reopen(d, unix.O_RDONLY|unix.O_DIRECTORY)
		_ = d.Close()
		if err != nil {
			continue
		}
		err = f.Chmod(h.FileInfo().Mode().Perm())
		times := []unix.Timespec{unix.NsecToTimespec(h.ModTime.UnixNano()), unix.NsecToTimespec(h.ModTime.UnixNano())}
		if err == nil {
			err = unix.UtimesNanoAt(int(f.Fd()), ".", times, 0)
		}
		_ = f.Close()
		if err != nil {
			return &fs.PathError{Op: "set the mode of", Path: h.Name, Err: err}
		}
	}
	return nil
}

func setTime(parent *os.File, name string, at time.Time) error {
	ts := unix.NsecToTimespec(at.UnixNano())
	return unix.UtimesNanoAt(int(parent.Fd()), name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// Rename copies a tar stream whose first entry has the name ".", under another name. An empty name
// changes nothing.
func Rename(from io.Reader, to io.Writer, name string) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return out.Close()
		case err != nil:
			return err
		}
		if name != "" {
			h.Name = path.Join(name, h.Name)
			if h.Typeflag == tar.TypeDir {
				h.Name += "/"
			}
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
