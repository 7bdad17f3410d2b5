package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/huskd/husk/test/debian"
)

// kernelPackage is Debian's metapackage for the newest kernel for virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// Kernel is a kernel and its modules, in directories of this host.
type Kernel struct {
	Release string // as uname -r
	Image   string // path
	Modules string // directory to use as /lib/modules/<release>
}

// FindKernel returns Debian's kernel. The first call on a host downloads it.
func FindKernel(ctx context.Context) (Kernel, error) {
	root, err := debian.Cached("husk-vm", "kernel", func(root string) error { return download(ctx, root) })
	if err != nil {
		return Kernel{}, err
	}
	images, _ := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if len(images) != 1 {
		return Kernel{}, fmt.Errorf("%s holds the kernels %v, want one: remove the directory", root, images)
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return Kernel{Release: release, Image: images[0], Modules: filepath.Join(root, "lib/modules", release)}, nil
}

// download unpacks the kernel's package into root.
func download(ctx context.Context, root string) error {
	depends, err := debian.Output(ctx, root, "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return err
	}
	_, name, ok := strings.Cut(depends, "Depends: ")
	if !ok {
		return fmt.Errorf("apt knows no kernel by %s: apt-get update may help", kernelPackage)
	}
	name = strings.TrimSpace(name)
	if err := debian.Extract(ctx, root, name); err != nil {
		return err
	}
	// The package's own installation would run depmod, which writes the index that modprobe reads.
	_, err = debian.Output(ctx, root, "depmod", "-b", root, strings.TrimPrefix(name, "linux-image-"))
	return err
}

// AddModules adds what modprobe needs to load the modules that begin with one of the prefixes
// ("kernel/net/"), and their dependencies.
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
