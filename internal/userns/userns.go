// Package userns makes user namespaces, and mounts that show files as owned by
// the users of one.
package userns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci/pause"
)

// Mapping says which IDs of the host are those of a user namespace.
type Mapping struct{ UIDs, GIDs []syscall.SysProcIDMap }

// Whole maps size users and groups from 0 on to those of the host from first on.
func Whole(first, size int) Mapping {
	ids := []syscall.SysProcIDMap{{HostID: first, Size: size}}
	return Mapping{UIDs: ids, GIDs: ids}
}

// Root returns the host's IDs of the namespace's user and group 0; -1 if they
// aren't mapped.
func (m Mapping) Root() (uid, gid int) { return root(m.UIDs), root(m.GIDs) }

func root(ids []syscall.SysProcIDMap) int {
	for _, id := range ids {
		if id.ContainerID == 0 && id.Size > 0 {
			return id.HostID
		}
	}
	return -1
}

// Hold makes a user namespace and further ones, by their clone flags, that it
// owns. It calls fn with the ID of a process in them, which then ends. Only a
// process can make a user namespace: clone(2) must write its maps from outside.
func Hold(m Mapping, flags uintptr, fn func(pid int) error) error {
	program, err := unix.MemfdCreate("husk-userns", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("new user namespace: %w", err)
	}
	defer unix.Close(program)
	if _, err := unix.Write(program, pause.Bytes()); err != nil {
		return fmt.Errorf("new user namespace: %w", err)
	}
	// The process dies with the thread that has made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	process, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", program), []string{"husk-userns"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER | flags, UidMappings: m.UIDs, GidMappings: m.GIDs,
			// Else no process in the namespace could ever set its groups.
			GidMappingsEnableSetgroups: true,
			Pdeathsig:                  syscall.SIGKILL,
		},
	})
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("new user namespace: the kernel refuses its mappings, do they overlap? %w", err)
	}
	if err != nil {
		return fmt.Errorf("new user namespace: %w", err)
	}
	defer func() {
		_ = process.Kill()
		_, _ = process.Wait()
	}()
	return fn(process.Pid)
}

// Open returns a new user namespace, which lives as long as the file is open.
func Open(m Mapping) (ns *os.File, err error) {
	err = Hold(m, 0, func(pid int) error {
		ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		return err
	})
	return ns, err
}

// Mount mounts the file or directory source, with all that is mounted below it,
// at target, which must be of the same kind. What is owned by an ID in source is
// shown, to the host, as owned by the one that the user namespace at the path ns
// has mapped it to. What is mounted below source keeps its owners. Mounts made
// there later appear in target, but not the other way.
func Mount(source, target, ns string) error {
	f, err := os.Open(ns)
	if err != nil {
		return fmt.Errorf("mount %s for a user namespace: %w", source, err)
	}
	defer f.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("mount %s for a user namespace: %w", source, err)
	}
	defer unix.Close(tree)
	// A peer of source would, when it is unmounted, have all below source unmounted too.
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_SLAVE}); err != nil {
		return fmt.Errorf("mount %s for a user namespace: %w", source, err)
	}
	if err := Map(tree, f); err != nil {
		return fmt.Errorf("mount %s for a user namespace: %w", source, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}

// Map makes a detached mount show its files as owned by the users of ns.
func Map(tree int, ns *os.File) error {
	err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("it is mapped already: %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the owners of files in its file system can't be mapped: use another, or no user namespace: %w", err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("the kernel can't map the owners of files (Linux 5.12 can): %w", err)
	}
	return err
}
