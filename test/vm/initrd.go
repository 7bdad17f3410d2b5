package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Initrd is the root file system of a virtual machine: files by their absolute, clean path. Parent
// directories are added automatically.
type Initrd struct {
	files map[string]file
}

type file struct {
	mode uint32 // as in stat(2), type included
	body []byte // of a symbolic link, its target
}

// File types in stat(2) and cpio.
const (
	directory = 0o040000
	regular   = 0o100000
	symlink   = 0o120000
)

// NewInitrd returns an empty root file system with Debian's layout: /bin, /sbin and /lib link to
// /usr.
func NewInitrd() *Initrd {
	i := &Initrd{files: map[string]file{}}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		i.files["/"+dir] = file{symlink | 0o777, []byte("usr/" + dir)}
	}
	return i
}

// Dir adds an empty directory.
func (i *Initrd) Dir(name string) {
	if name = settled(name); name != "/" {
		i.files[name] = file{mode: directory | 0o755}
		i.Dir(path.Dir(name))
	}
}

// File adds a file.
func (i *Initrd) File(name string, perm uint32, body []byte) {
	name = settled(name)
	i.files[name] = file{regular | perm, body}
	i.Dir(path.Dir(name))
}

// Link adds a symbolic link.
func (i *Initrd) Link(name, target string) {
	name = settled(name)
	i.files[name] = file{symlink | 0o777, []byte(target)}
	i.Dir(path.Dir(name))
}

// Copy adds the file host of this host as name.
func (i *Initrd) Copy(name, host string) error {
	body, err := os.ReadFile(host)
	if err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	i.File(name, 0o755, body)
	return nil
}

// settled resolves the links that NewInitrd made in a path.
func settled(name string) string {
	for _, dir := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(name, dir) {
			return "/usr" + name
		}
	}
	return name
}

// Program adds a program of this host, found in PATH, and the shared libraries that it needs,
// directly or indirectly.
func (i *Initrd) Program(name string) error {
	host, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("initrd: %w: install its Debian package (make deps)", err)
	}
	return i.binary(host, host)
}

// binary adds an ELF file of this host, which may be a symbolic link, and its libraries.
func (i *Initrd) binary(name, host string) error {
	if _, ok := i.files[settled(name)]; ok {
		return nil
	}
	if err := i.Copy(name, host); err != nil {
		return err
	}
	f, err := elf.Open(host)
	if err != nil {
		return fmt.Errorf("initrd: %s: %w", host, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		raw, err := io.ReadAll(p.Open())
		if err != nil {
			return fmt.Errorf("initrd: %s: %w", host, err)
		}
		loader := string(bytes.TrimRight(raw, "\x00"))
		if err := i.binary(loader, loader); err != nil {
			return err
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("initrd: %s: %w", host, err)
	}
	for _, lib := range needed {
		found, err := library(lib)
		if err != nil {
			return fmt.Errorf("%w, which %s needs", err, host)
		}
		if err := i.binary(found, found); err != nil {
			return err
		}
	}
	return nil
}

// library finds a shared library where Debian's loader does: in /usr/lib, in its directory named
// after the architecture, and in systemd's private directory.
func library(name string) (string, error) {
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/", "/usr/lib/", "/usr/lib64/", "/usr/lib/*-linux-gnu/systemd/"} {
		if found, _ := filepath.Glob(pattern + name); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("initrd: there is no library %s", name)
}

// Tree adds the directory host of this host as name, with the files below it that keep selects.
// keep gets a path relative to the directory.
func (i *Initrd) Tree(name, host string, keep func(rel string) bool) error {
	return filepath.WalkDir(host, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(host, p)
		if err != nil || !keep(rel) {
			return err
		}
		body, err := os.ReadFile(p)
		i.File(path.Join(name, rel), 0o644, body)
		return err
	})
}

// WriteTo writes the root in the kernel's format: a cpio archive of the "newc" format, see
// Documentation/driver-api/early-userspace/buffer-format.rst.
func (i *Initrd) WriteTo(w io.Writer) (int64, error) {
	c := &counter{to: w}
	for n, name := range slices.Sorted(maps.Keys(i.files)) {
		i.files[name].write(c, n+1, name[1:])
	}
	file{}.write(c, 0, "TRAILER!!!")
	return c.n, c.err
}

func (f file) write(c *counter, inode int, name string) {
	links := 1
	if f.mode&directory == directory {
		links = 2
	}
	// Each number is eight hex digits: inode, mode, owner, group, links, time, size, device and
	// special device (major and minor each), length of the name with its terminating zero, and a
	// checksum, which newc doesn't use.
	c.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		inode, f.mode, 0, 0, links, 0, len(f.body), 0, 0, 0, 0, len(name)+1, 0, name)
	c.pad()
	c.write(f.body)
	c.pad()
}

// counter counts bytes and stops at the first error.
type counter struct {
	to  io.Writer
	n   int64
	err error
}

func (c *counter) write(p []byte) {
	if c.err == nil {
		var n int
		n, c.err = c.to.Write(p)
		c.n += int64(n)
	}
}

func (c *counter) printf(format string, args ...any) { c.write(fmt.Appendf(nil, format, args...)) }

// pad writes zeros up to a multiple of four.
func (c *counter) pad() { c.write(make([]byte, -c.n&3)) }
