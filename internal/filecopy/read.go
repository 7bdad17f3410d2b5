package filecopy

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// depthMax is how deep directories may be nested: each level holds a file descriptor.
	depthMax = 1000
	// skippedMax is how many skipped files are named.
	skippedMax = 20
)

// pseudo are the file systems below a copied directory that are skipped: their files are views of
// the kernel. From statfs(2).
var pseudo = map[int64]string{
	unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP_SUPER_MAGIC: "cgroup", unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEVPTS_SUPER_MAGIC: "devpts", 0x19800202: "mqueue",
}

// Read writes the file or directory at an absolute path as a tar stream. It returns lines about
// what it skipped, as those aren't files, directories or symbolic links.
func (t *Tree) Read(ctx context.Context, name string, to io.Writer) (skipped []string, err error) {
	r := &reader{ctx: ctx, to: tar.NewWriter(to)}
	f, err := t.open(name, strings.HasSuffix(name, "/") || strings.HasSuffix(name, "/."))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := r.add(f, ".", 0); err != nil {
		return nil, err
	}
	return r.skipped, r.to.Close()
}

// reader writes a tar stream.
type reader struct {
	ctx     context.Context
	to      *tar.Writer
	skipped []string
}

func (r *reader) skip(name, why string) {
	switch len(r.skipped) {
	case skippedMax:
		r.skipped = append(r.skipped, "and more")
	default:
		if len(r.skipped) < skippedMax {
			r.skipped = append(r.skipped, name+" "+why)
		}
	}
}

// add adds what an O_PATH file stands for, under the name.
func (r *reader) add(f *os.File, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	h := &tar.Header{Name: name, Mode: int64(st.Mode & 0o777), ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		return r.addFile(f, h)
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		return r.addDirectory(f, h, depth)
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(f.Fd()), "", buf)
		if err != nil {
			return &fs.PathError{Op: "readlink", Path: name, Err: err}
		}
		h.Linkname = string(buf[:n])
		return r.to.WriteHeader(h)
	case unix.S_IFSOCK:
		r.skip(name, "is a socket")
	case unix.S_IFIFO:
		r.skip(name, "is a named pipe")
	default:
		r.skip(name, "is a device")
	}
	if name == "." {
		return errors.New(strings.TrimPrefix(r.skipped[0], ". ") + ": only files, directories and symbolic links can be copied")
	}
	return nil
}

// addFile adds a regular file. If it is changed meanwhile, the stream has as much of it as it had
// first, filled up with zeros.
func (r *reader) addFile(f *os.File, h *tar.Header) error {
	content, err := reopen(f, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer content.Close()
	if err := r.to.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(r.to, io.LimitReader(content, h.Size))
	if err == nil && n < h.Size {
		_, err = io.CopyN(r.to, zeros{}, h.Size-n)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", h.Name, err)
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (r *reader) addDirectory(f *os.File, h *tar.Header, depth int) error {
	if depth > depthMax {
		return fmt.Errorf("%s: directories are nested more than %d deep", h.Name, depthMax)
	}
	var sys unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &sys); err == nil && depth > 0 && pseudo[sys.Type] != "" {
		r.skip(h.Name, "is a file system of type "+pseudo[sys.Type])
		return nil
	}
	dir, err := reopen(f, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	entry := *h
	if h.Name != "." {
		entry.Name += "/"
	}
	if err := r.to.WriteHeader(&entry); err != nil {
		return err
	}
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			if err := r.addEntry(dir, name, path.Join(h.Name, name), depth+1); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", h.Name, err)
		}
	}
}

func (r *reader) addEntry(dir *os.File, name, full string, depth int) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil // it was removed meanwhile
	case err != nil:
		return &fs.PathError{Op: "open", Path: full, Err: err}
	}
	f := os.NewFile(uintptr(fd), full)
	defer f.Close()
	return r.add(f, full, depth)
}
