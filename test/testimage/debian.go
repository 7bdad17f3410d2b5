package testimage

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The Debian packages that images are made of.
var packages = []string{"busybox", "libc6"}

// extracted returns a directory that holds the files of packages. The first
// caller on a machine downloads them, with apt; later ones find them in the
// user's cache directory.
func extracted(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("test image cache: %w: set HOME or XDG_CACHE_HOME", err)
	}
	base := filepath.Join(cache, "husk-testimage")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("test image cache: %w", err)
	}
	unlock, err := lock(filepath.Join(base, "lock"))
	if err != nil {
		return "", fmt.Errorf("test image cache: %w", err)
	}
	defer unlock()

	arch, err := output(ctx, base, "dpkg", "--print-architecture")
	if err != nil {
		return "", err
	}
	done := filepath.Join(base, strings.TrimSpace(arch))
	if _, err := os.Stat(done); err == nil {
		return done, nil
	}
	tmp, err := os.MkdirTemp(base, "download-")
	if err != nil {
		return "", fmt.Errorf("test image cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	if _, err := output(ctx, tmp, "apt-get", append([]string{"download", "-q"}, packages...)...); err != nil {
		return "", fmt.Errorf("%w (apt-get update may help)", err)
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, deb := range debs {
		if _, err := output(ctx, tmp, "dpkg", "-x", deb, "root"); err != nil {
			return "", err
		}
	}
	// The rename comes last, so that the directory is whole once it is there.
	if err := os.Rename(filepath.Join(tmp, "root"), done); err != nil {
		return "", fmt.Errorf("test image cache: %w", err)
	}
	return done, nil
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return func() { _ = f.Close() }, nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		var stderr string
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			stderr = ": " + strings.TrimSpace(string(exit.Stderr))
		}
		return "", fmt.Errorf("%s %s: %w%s", name, strings.Join(args, " "), err, stderr)
	}
	return string(out), nil
}

// program is an executable and what it needs to run: paths in the image to
// paths on this host.
type program struct {
	host   string
	loader string            // path on this host
	libs   string            // directory of the libraries in the image
	files  map[string]string // loader and libraries
}

// findProgram looks below root for an executable and the shared libraries that
// it names, directly or through others.
func findProgram(root, name string) (*program, error) {
	host, err := find(root, name)
	if err != nil {
		return nil, err
	}
	interp, needed, err := dynamic(host)
	if err != nil {
		return nil, err
	}
	p := &program{host: host, files: map[string]string{}}
	if p.loader, err = find(root, filepath.Base(interp)); err != nil {
		return nil, err
	}
	p.files[interp] = p.loader
	seen := []string{filepath.Base(interp)}
	for len(needed) > 0 {
		lib := needed[0]
		needed = needed[1:]
		if slices.Contains(seen, lib) {
			continue
		}
		seen = append(seen, lib)
		path, err := find(root, lib)
		if err != nil {
			return nil, err
		}
		// Debian's loader looks in /lib/<triplet>, where the package has them.
		p.libs = "/lib/" + filepath.Base(filepath.Dir(path))
		p.files[p.libs+"/"+lib] = path
		_, more, err := dynamic(path)
		if err != nil {
			return nil, err
		}
		needed = append(needed, more...)
	}
	return p, nil
}

// find returns the ELF file below root with this base name.
func find(root, name string) (string, error) {
	var found string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != name {
			return err
		}
		f, err := elf.Open(path)
		if err != nil {
			return nil // a script or a page of documentation
		}
		found = path
		_ = f.Close()
		return fs.SkipAll
	})
	if err == nil && found == "" {
		err = fmt.Errorf("%s is in none of the packages %v", name, packages)
	}
	return found, err
}

// dynamic returns the ELF interpreter and the libraries that a file names.
func dynamic(path string) (interp string, needed []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		raw := make([]byte, p.Filesz)
		if _, err := p.ReadAt(raw, 0); err != nil {
			return "", nil, fmt.Errorf("%s: %w", path, err)
		}
		interp = strings.TrimRight(string(raw), "\x00")
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	return interp, needed, nil
}
