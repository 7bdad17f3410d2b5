package testimage

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/huskd/husk/test/debian"
)

// The Debian packages that images are built from.
var packages = []string{"busybox", "libc6"}

// extracted returns a directory with the files of packages. The first call on a host downloads
// them.
func extracted(ctx context.Context) (string, error) {
	arch, err := debian.Output(ctx, "/", "dpkg", "--print-architecture")
	if err != nil {
		return "", err
	}
	return debian.Cached("husk-testimage", strings.TrimSpace(arch), func(root string) error {
		return debian.Extract(ctx, root, packages...)
	})
}

// Programs returns the entries of executables below root, which are extracted from packages: each
// at the path that its package gives it, with its loader and its shared libraries.
func Programs(root string, names ...string) ([]Entry, error) {
	files := map[string]string{} // paths in the image to paths on this host
	for _, name := range names {
		p, err := findProgram(root, name)
		if err != nil {
			return nil, err
		}
		maps.Copy(files, p.files)
		files[strings.TrimPrefix(p.host, root)] = p.host
	}
	entries := []Entry{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		body, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		entries = append(entries, File(name[1:], 0o755, body))
	}
	return entries, nil
}

// program is an executable and the files that it needs: paths in the image to paths on this host.
type program struct {
	host   string
	loader string            // path on this host
	libs   string            // directory of the libraries in the image
	files  map[string]string // loader and libraries
}

// findProgram finds an executable below root, and the shared libraries that it needs, directly or
// indirectly.
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
		// Debian's loader searches /lib/<triplet>, where the package has them.
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

// find returns the ELF file below root with the given base name.
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
		err = fmt.Errorf("%s is in none of the packages in %s", name, root)
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
