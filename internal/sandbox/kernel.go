package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
)

// Kernel is what sandboxes need of the kernel beside cgroups. All calls can be repeated.
type Kernel interface {
	// Pin creates namespaces and pins them. On error nothing is left.
	Pin(p netns.Pins) error
	// Unpin unpins namespaces. Empty and missing paths are no error.
	Unpin(paths ...string) error
	// Pinned reports whether a namespace is pinned at path.
	Pinned(path string) bool
	// Pins returns the paths of the network namespaces whose names begin with prefix.
	Pins(prefix string) ([]string, error)
	// MountMemory mounts an empty file system of limited size, in memory, at path. It replaces what
	// was mounted there. Only the owner and root can reach what is in it.
	MountMemory(path string, uid, gid int) error
	// Unmount unmounts what is mounted at path, if anything is.
	Unmount(path string) error
}

// node is the kernel of the node that huskd runs on.
type node struct{}

func (node) Pin(p netns.Pins) error               { return netns.Create(p) }
func (node) Unpin(paths ...string) error          { return netns.Remove(paths...) }
func (node) Pinned(path string) bool              { return netns.Pinned(path) }
func (node) Pins(prefix string) ([]string, error) { return netns.List(netns.Dir, prefix) }

// memorySize bounds a pod's /dev/shm and the three files beside it that its containers may write
// to. Docker, containerd and CRI-O give 64 MiB to /dev/shm, and a program can use all of them. Each
// of the files takes a page.
var memorySize = 64<<20 + 3*os.Getpagesize()

func (n node) MountMemory(path string, uid, gid int) error {
	if err := n.Unmount(path); err != nil {
		return err
	}
	options := fmt.Sprintf("mode=0700,size=%d,uid=%d,gid=%d", memorySize, uid, gid)
	if err := unix.Mount("husk", path, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", path, err)
	}
	return nil
}

// Unmount unmounts lazily all mounts that are stacked at path.
func (node) Unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}
