package checkpoint

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The names by which an OCI layer hides files of the layers below.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// writeLayer writes the writable layer of an overlay as an OCI layer.
func writeLayer(to io.Writer, upper string) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == upper {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(upper, path)
		if err != nil {
			return err
		}
		return writeEntry(w, path, rel, info)
	})
	return errors.Join(err, w.Close())
}

func writeEntry(w *tar.Writer, path, name string, info fs.FileInfo) error {
	if hides(info) {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Join(filepath.Dir(name), whiteout+filepath.Base(name))})
	}
	if info.Mode()&fs.ModeSocket != 0 {
		return nil // binding creates a socket again
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if err := attributes(h, path); err != nil {
		return err
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	switch {
	case info.IsDir() && attribute(path, "trusted.overlay.opaque") == "y":
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Join(name, opaque)})
	case info.Mode().IsRegular():
		return writeContent(w, path)
	}
	return nil
}

// hides reports whether a file is one of overlayfs's whiteouts: a character device 0, 0.
func hides(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0
}

func writeContent(w *tar.Writer, path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// attributes adds the extended attributes that the container can set, and not those of overlayfs.
func attributes(h *tar.Header, path string) error {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("attributes of %s: %w", path, err)
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if strings.HasPrefix(name, "user.") || name == "security.capability" {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+name] = attribute(path, name)
		}
	}
	return nil
}

func attribute(path, name string) string {
	value := make([]byte, 64<<10)
	n, err := unix.Lgetxattr(path, name, value)
	if err != nil {
		return ""
	}
	return string(value[:n])
}
