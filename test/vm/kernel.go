package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelPackage is Debian's name for the newest kernel made for virtual
// machines: a package that has nothing but the dependency on it.
const kernelPackage = "linux-image-cloud-amd64"

// Kernel is a kernel and its modules in directories of this host.
type Kernel struct {
	Release string // as uname -r
	Image   string // path
	Modules string // path of what is to be /lib/modules/<release>
}

// FindKernel returns Debian's kernel. The first call on a machine downloads it
// with apt; later ones find it in the user's cache directory.
func FindKernel(ctx context.Context) (Kernel, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return Kernel{}, fmt.Errorf("kernel cache: %w: set HOME or XDG_CACHE_HOME", err)
	}
	base := filepath.Join(cache, "husk-vm")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return Kernel{}, fmt.Errorf("kernel cache: %w", err)
	}
	unlock, err := lock(filepath.Join(base, "lock"))
	if err != nil {
		return Kernel{}, fmt.Errorf("kernel cache: %w", err)
	}
	defer unlock()
	root := filepath.Join(base, "kernel")
	if _, err := os.Stat(root); err != nil {
		if err := download(ctx, base, root); err != nil {
			return Kernel{}, err
		}
	}
	images, _ := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if len(images) != 1 {
		return Kernel{}, fmt.Errorf("%s holds the kernels %v, want one: remove the directory", root, images)
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return Kernel{Release: release, Image: images[0], Modules: filepath.Join(root, "lib/modules", release)}, nil
}

// download unpacks the kernel's package at root.
func download(ctx context.Context, base, root string) error {
	tmp, err := os.MkdirTemp(base, "download-")
	if err != nil {
		return fmt.Errorf("kernel cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	depends, err := output(ctx, tmp, "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return err
	}
	_, name, ok := strings.Cut(depends, "Depends: ")
	if !ok {
		return fmt.Errorf("apt knows no kernel by %s: apt-get update may help", kernelPackage)
	}
	name = strings.TrimSpace(name)
	if _, err := output(ctx, tmp, "apt-get", "download", "-q", name); err != nil {
		return fmt.Errorf("%w (apt-get update may help)", err)
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %v", name, debs)
	}
	if _, err := output(ctx, tmp, "dpkg-deb", "-x", debs[0], "root"); err != nil {
		return err
	}
	// A package's own installation would do this: the index that modprobe reads.
	release := strings.TrimPrefix(name, "linux-image-")
	if _, err := output(ctx, tmp, "depmod", "-b", filepath.Join(tmp, "root"), release); err != nil {
		return err
	}
	// The rename comes last, so that the directory is whole once it is there.
	return os.Rename(filepath.Join(tmp, "root"), root)
}

// AddModules adds what modprobe needs to load the modules that begin with any
// of the prefixes ("kernel/net/"), and the modules that those need.
func (k Kernel) AddModules(root *Initrd, prefixes ...string) error {
	index, err := os.ReadFile(filepath.Join(k.Modules, "modules.dep"))
	if err != nil {
		return fmt.Errorf("kernel modules: %w", err)
	}
	keep := map[string]bool{}
	for line := range strings.Lines(string(index)) {
		module, needs, _ := strings.Cut(line, ":")
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(module, p) }) {
			keep[module] = true
			for need := range strings.FieldsSeq(needs) { // all of them: the list is transitive
				keep[need] = true
			}
		}
	}
	return root.Tree("/lib/modules/"+k.Release, k.Modules, func(rel string) bool {
		return keep[rel] || strings.HasPrefix(rel, "modules.")
	})
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
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
