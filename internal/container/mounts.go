package container

import "github.com/huskd/husk/internal/image/rootfs"

// Mounts mounts root file systems. Both calls can be repeated.
type Mounts interface {
	// Mount mounts one in a directory and returns its path.
	Mount(s rootfs.Spec) (string, error)
	// Unmount undoes Mount, or does nothing.
	Unmount(dir string) error
}

// overlays are the kernel's.
type overlays struct{}

func (overlays) Mount(s rootfs.Spec) (string, error) { return rootfs.Mount(s) }
func (overlays) Unmount(dir string) error            { return rootfs.Unmount(dir) }
