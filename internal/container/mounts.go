package container

import "github.com/huskd/husk/internal/image/rootfs"

// Mounts mounts root file systems. Both calls can be repeated.
type Mounts interface {
	// Mount mounts a root file system in the directory of s and returns its path.
	Mount(s rootfs.Spec) (string, error)
	// Unmount undoes Mount. It succeeds if nothing is mounted.
	Unmount(dir string) error
}

// overlays mounts the kernel's overlays.
type overlays struct{}

func (overlays) Mount(s rootfs.Spec) (string, error) { return rootfs.Mount(s) }
func (overlays) Unmount(dir string) error            { return rootfs.Unmount(dir) }
