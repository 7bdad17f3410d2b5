package host

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/userns"
)

// idmap reports whether mounts of dir's file system can be ID-mapped. It tries that on a detached
// copy of the mount.
func idmap(dir string) bool {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(tree)
	// The kernel doesn't accept the initial user namespace.
	ns, err := userns.Open(userns.Whole(os.Getuid(), 1))
	if err != nil {
		return false
	}
	defer ns.Close()
	return userns.Map(tree, ns) == nil
}
