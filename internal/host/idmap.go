package host

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/userns"
)

// idmap says whether mounts of dir's file system can be idmapped, by doing it
// to a detached copy of the mount that nobody sees.
func idmap(dir string) bool {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(tree)
	// The mapping must be that of a namespace other than the initial one.
	ns, err := userns.Open(userns.Whole(os.Getuid(), 1))
	if err != nil {
		return false
	}
	defer ns.Close()
	return userns.Map(tree, ns) == nil
}
