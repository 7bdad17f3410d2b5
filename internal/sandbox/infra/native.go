package infra

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/pause"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pidfd"
)

// program is the path of the program in its root file system.
const program = "/pause"

// cgroupFile holds, in the directory of a process that Driver starts itself, the cgroup of the
// process. It is written before the cgroup is created.
const cgroupFile = "cgroup"

// startNative starts the process without a runtime. If it fails, no process is left.
func (d Driver) startNative(r Request) (started oci.Process, err error) {
	if err := os.WriteFile(filepath.Join(r.Dir, cgroupFile), []byte(r.Cgroup), 0o600); err != nil {
		return oci.Process{}, err
	}
	tree, err := cgroup.New(d.Host.Cgroup, r.Cgroup)
	if err != nil {
		return oci.Process{}, err
	}
	if err := tree.Create(r.Cgroup, cgroup.Limits{CPUShares: spec.InfraShares}); err != nil {
		return oci.Process{}, err
	}
	into, err := tree.Open(r.Cgroup)
	if err != nil {
		return oci.Process{}, err
	}
	defer into.Close()
	stdin, start, err := os.Pipe()
	if err != nil {
		return oci.Process{}, err
	}
	defer stdin.Close()
	defer start.Close() // without the byte, this ends the process
	var process *os.Process
	err = netns.OnThread(func() (err error) {
		process, err = d.fork(r, stdin, into)
		return err
	})
	if err != nil {
		return oci.Process{}, err
	}
	defer func() {
		if err != nil {
			_ = process.Kill()
			_, _ = process.Wait()
		}
		_ = process.Release()
	}()
	if err := tree.Join(r.Cgroup, process.Pid); err != nil {
		return oci.Process{}, err
	}
	score := strconv.Itoa(max(spec.InfraOOMScore, d.Host.OOMScoreFloor))
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", process.Pid), []byte(score), 0); err != nil {
		return oci.Process{}, err
	}
	if started, err = pidfd.Identify(process.Pid); err != nil {
		return oci.Process{}, err
	}
	_, err = start.Write([]byte{1})
	return started, err
}

// fork starts the program from the calling thread, which must end afterwards. On a v2 host the
// process is created in the cgroup into.
func (d Driver) fork(r Request, stdin, into *os.File) (*os.Process, error) {
	for path, kind := range map[string]int{
		r.Namespaces.Net: unix.CLONE_NEWNET, r.Namespaces.IPC: unix.CLONE_NEWIPC, r.Namespaces.UTS: unix.CLONE_NEWUTS,
	} {
		if path == "" {
			continue
		}
		if err := join(path, kind); err != nil {
			return nil, err
		}
	}
	if err := enterRoot(r.rootfs()); err != nil {
		return nil, fmt.Errorf("make %s the root: %w", r.rootfs(), err)
	}
	if err := dropBounding(); err != nil {
		return nil, fmt.Errorf("drop capabilities: %w", err)
	}
	// What huskd itself has inherited must not be passed on.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("close inherited files: %w", err)
	}
	return os.StartProcess(program, pause.Await, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{stdin},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID, Setsid: true,
			Credential:  &syscall.Credential{Uid: spec.InfraUser, Gid: spec.InfraUser},
			UseCgroupFD: d.Host.Cgroup.Mode.Unified(), CgroupFD: int(into.Fd()),
		},
	})
}

func join(path string, kind int) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), kind); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// enterRoot moves the thread into a new mount namespace, whose only mount is dir, read-only. A
// chroot would not do: a container with CAP_SYS_PTRACE could leave it by /proc/1/root/.. .
func enterRoot(dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	const flags = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("", dir, "", flags, ""); err != nil {
		return err
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	// With both in one place the old root is mounted over the new one: see pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// dropBounding empties the thread's bounding set of capabilities. The thread keeps those that it
// has.
func dropBounding() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the kernel has no more
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// waitNative returns once the process has exited, at once if it has.
func waitNative(ctx context.Context, p oci.Process) error {
	fd, err := pidfd.Open(p)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	return pidfd.Wait(ctx, fd)
}

// removeNative kills the process p, which is zero if it isn't known, and all else in the cgroup. It
// removes the cgroup.
func (d Driver) removeNative(ctx context.Context, path string, p oci.Process) error {
	if err := pidfd.End(ctx, p); err != nil {
		return err
	}
	tree, err := cgroup.New(d.Host.Cgroup, path)
	if err != nil {
		return err
	}
	return tree.Remove(ctx, path)
}
