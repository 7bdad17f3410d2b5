// Package debian provides tests with files of Debian packages, without installing the packages.
package debian

import (
	"context"
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

// Cached returns the directory name below dir in the user's cache directory. If it doesn't exist
// yet, fill creates its content in an empty directory, which is renamed once it is complete.
func Cached(dir, name string, fill func(root string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache of Debian's packages: %w: set HOME or XDG_CACHE_HOME", err)
	}
	base := filepath.Join(cache, dir)
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("cache of Debian's packages: %w", err)
	}
	unlock, err := lock(filepath.Join(base, "lock"))
	if err != nil {
		return "", fmt.Errorf("cache of Debian's packages: %w", err)
	}
	defer unlock()
	done := filepath.Join(base, name)
	if _, err := os.Stat(done); err == nil {
		return done, nil
	}
	tmp, err := os.MkdirTemp(base, "download-")
	if err != nil {
		return "", fmt.Errorf("cache of Debian's packages: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := errors.Join(os.Chmod(tmp, 0o755), fill(tmp)); err != nil {
		return "", err
	}
	return done, os.Rename(tmp, done)
}

// Extract downloads packages with apt and unpacks them into root.
func Extract(ctx context.Context, root string, packages ...string) error {
	tmp, err := os.MkdirTemp("", "husk-debian-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := Output(ctx, tmp, "apt-get", append([]string{"download", "-q"}, packages...)...); err != nil {
		return fmt.Errorf("%w (apt-get update may help)", err)
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err == nil && len(debs) != len(packages) {
		err = fmt.Errorf("apt-get download %s left %v", strings.Join(packages, " "), debs)
	}
	for _, deb := range debs {
		if err == nil {
			_, err = Output(ctx, tmp, "dpkg-deb", "-x", deb, root)
		}
	}
	return err
}

// Dependencies returns packages and all packages that they depend on. Where a package accepts one
// of several, all of those are among them.
func Dependencies(ctx context.Context, packages ...string) ([]string, error) {
	out, err := Output(ctx, "/", "apt-cache", append([]string{"depends", "--recurse", "--important"}, packages...)...)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(out) {
		// Dependencies are indented, and the names of virtual packages are in angle brackets.
		if name := strings.TrimSpace(line); !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "<") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Output runs a command in dir and returns its standard output. An error contains its standard
// error.
func Output(ctx context.Context, dir, name string, args ...string) (string, error) {
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
