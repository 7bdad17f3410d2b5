package host

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci/pause"
)

// idmap says whether mounts of dir's file system can be idmapped, by doing it
// to a detached copy of the mount that nobody sees. The mapping must be that of
// a user namespace other than the initial one, and only a process makes such a
// thing, so the pause program is run in one for as long as it takes.
func idmap(dir string) bool {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(tree)
	userns, err := userNamespace()
	if err != nil {
		return false
	}
	defer userns.Close()
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())})
	return err == nil
}

// userNamespace returns a user namespace that maps its root to the host's.
func userNamespace() (*os.File, error) {
	program, err := unix.MemfdCreate("husk-userns", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(program)
	if _, err := unix.Write(program, pause.Bytes()); err != nil {
		return nil, err
	}
	// Both maps must be written: a mount takes none that is empty.
	uid := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	gid := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	process, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", program), []string{"husk-userns"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: uid, GidMappings: gid, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = process.Kill()
		_, _ = process.Wait()
	}()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", process.Pid))
}
