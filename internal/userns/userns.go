// Package userns creates user namespaces and ID-mapped mounts.
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

// Mapping maps the IDs of a user namespace to the host's.
type Mapping struct{ UIDs, GIDs []syscall.SysProcIDMap }

// Whole maps size users and groups, beginning with 0, to the host's, beginning with first.
func Whole(first, size int) Mapping {
	ids := []syscall.SysProcIDMap{{HostID: first, Size: size}}
	return Mapping{UIDs: ids, GIDs: ids}
}

// Root returns the host's IDs of the namespace's user and group 0; -1 for one that isn't mapped.
func (m Mapping) Root() (uid, gid int) { return root(m.UIDs), root(m.GIDs) }

func root(ids []syscall.SysProcIDMap) int {
	for _, id := range ids {
		if id.ContainerID == 0 && id.Size > 0 {
			return id.HostID
		}
	}
	return -1
}

// Hold creates a user namespace, and the namespaces that flags, of clone(2), name as owned by it.
// It calls fn with the PID of a process in them, and kills the process when fn returns. A process
// of its own is needed because the ID maps must be written from outside of the namespace.
func Hold(m Mapping, flags uintptr, fn func(pid int) error) error {
	program, err := unix.MemfdCreate("husk-userns", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("new user namespace: %w", err)
	}
	defer unix.Close(program)
	if _, err := unix.Write(program, pause.Bytes()); err != nil {
		return fmt.Errorf("new user namespace: %w", err)
	}
	// Pdeathsig kills the process when the thread that started it exits.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	process, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", program), []string{"husk-userns"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER | flags, UidMappings: m.UIDs, GidMappings: m.GIDs,
			// Without this no process in the namespace could call setgroups.
			GidMappingsEnableSetgroups: true,
			Pdeathsig:                  syscall.SIGKILL,
		},
	})
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("new user namespace: the kernel refuses its mappings: do they overlap? %w", err)
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

// Open returns a new user namespace, which exists as long as the file is open.
func Open(m Mapping) (ns *os.File, err error) {
	err = Hold(m, 0, func(pid int) error {
		ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		return err
	})
	return ns, err
}

// Mount bind mounts the file or directory source at target, which must be of the same kind. The
// owners of files in target are those of source, mapped by the user namespace at the path ns. The
// mounts below source are mounted too, with their owners unchanged. Later mounts below source
// appear below target, but not the other way.
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
	// Slave, because unmounting a peer of source would unmount everything below source too.
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

// Map maps the owners of files in a detached mount by the user namespace ns.
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
