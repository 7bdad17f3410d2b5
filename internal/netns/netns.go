// Package netns creates, pins, enters and releases namespaces. It is the only package that moves an
// OS thread into one: a thread that has been in another namespace must end with its goroutine.
//
// A namespace is pinned by bind-mounting its file in /proc onto a file of ours. It then exists
// until that is unmounted, without a process in it and independently of huskd; see namespaces(7).
package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/userns"
)

// Dir is where network namespaces are pinned, so that `ip netns` lists them.
const Dir = "/run/netns"

// Pins selects the new namespaces, where to pin them, and their settings. A kind with an empty path
// isn't created.
type Pins struct {
	Net, IPC, UTS string
	// User is a user namespace with the mapping Owner. It owns the others.
	User  string
	Owner userns.Mapping
	// Hostname of the new UTS namespace.
	Hostname string
	// Sysctls are set inside the new namespaces, by dotted or slashed name.
	Sysctls map[string]string
}

func (p Pins) paths() []string { return []string{p.Net, p.IPC, p.UTS, p.User} }

// Create makes the namespaces and pins them. The loopback link of a new network namespace is up.
// Leftovers of an interrupted Create with the same paths are replaced. On error nothing is left.
func Create(p Pins) error {
	if err := Remove(p.paths()...); err != nil {
		return err
	}
	if p.Net != "" && filepath.Dir(p.Net) == Dir {
		if err := shareDir(); err != nil {
			return err
		}
	}
	for _, path := range p.paths() {
		if path == "" {
			continue
		}
		if err := touch(path); err != nil {
			return errors.Join(fmt.Errorf("pin namespace: %w", err), Remove(p.paths()...))
		}
	}
	if err := p.make(); err != nil {
		return errors.Join(err, Remove(p.paths()...))
	}
	return nil
}

func (p Pins) make() error {
	flags := 0
	for path, flag := range map[string]int{p.Net: unix.CLONE_NEWNET, p.IPC: unix.CLONE_NEWIPC, p.UTS: unix.CLONE_NEWUTS} {
		if path != "" {
			flags |= flag
		}
	}
	if p.User == "" {
		return OnThread(func() error {
			if err := unix.Unshare(flags); err != nil {
				return fmt.Errorf("new namespaces: %w", err)
			}
			return p.setUp()
		})
	}
	return userns.Hold(p.Owner, uintptr(flags), func(pid int) error {
		if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/user", pid), p.User, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin user namespace at %s: %w", p.User, err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return fmt.Errorf("new namespaces: %w", err)
		}
		defer unix.Close(fd)
		return OnThread(func() error {
			if err := unix.Setns(fd, flags); err != nil {
				return fmt.Errorf("enter new namespaces: %w", err)
			}
			return p.setUp()
		})
	})
}

// setUp sets up and pins the calling thread's namespaces, which are new.
func (p Pins) setUp() error {
	if p.Net != "" {
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("new network namespace: set lo up: %w", err)
		}
	}
	if p.UTS != "" && p.Hostname != "" {
		if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", p.Hostname, err)
		}
	}
	for path, file := range map[string]string{p.Net: "net", p.IPC: "ipc", p.UTS: "uts"} {
		if path == "" {
			continue
		}
		if err := unix.Mount("/proc/thread-self/ns/"+file, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin %s namespace at %s: %w", file, path, err)
		}
	}
	return p.setSysctls()
}

// setSysctls sets the sysctls as the node's root. Those of an IPC namespace need the root of its
// own user namespace, which the thread then becomes.
func (p Pins) setSysctls() error {
	left := map[string]string{}
	for name, value := range p.Sysctls {
		err := SetSysctl(name, value)
		if errors.Is(err, os.ErrPermission) && p.User != "" {
			left[name] = value
			continue
		}
		if err != nil {
			return err
		}
	}
	if len(left) == 0 {
		return nil
	}
	uid, _ := p.Owner.Root()
	// The raw system call changes this thread only, which ends. syscall.Setresuid changes all
	// threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
		return fmt.Errorf("become user %d: %w", uid, errno)
	}
	// A change of user makes the whole process not dumpable.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return err
	}
	for name, value := range left {
		if err := SetSysctl(name, value); err != nil {
			return err
		}
	}
	return nil
}

// SetSysctl writes a sysctl of the calling thread's namespaces. The name is dotted or slashed; a
// slash inside a dotted name stands for a dot, as in net.ipv4.conf.eth0/100.forwarding
// (sysctl.d(5)).
func SetSysctl(name, value string) error {
	path, err := sysctlPath(name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("sysctl %s: %w", name, err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", name, value, err)
	}
	return nil
}

func sysctlPath(name string) (string, error) {
	slashed := name
	if first := strings.IndexAny(name, "./"); first >= 0 && name[first] == '.' {
		slashed = strings.Map(func(r rune) rune {
			switch r {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return r
		}, name)
	}
	if !filepath.IsLocal(slashed) || slashed == "." {
		return "", fmt.Errorf("sysctl %q: not a name", name)
	}
	return filepath.Join("/proc/sys", slashed), nil
}

// Remove unpins the namespaces at paths and removes the files. Empty and missing paths are fine. A
// namespace itself disappears with its last process, thread and pin.
func Remove(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := unpin(path); err != nil {
			errs = append(errs, fmt.Errorf("unpin namespace %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func unpin(path string) error {
	if err := unmount(path); err != nil {
		return err
	}
	err := os.Remove(path)
	if errors.Is(err, unix.EBUSY) {
		err = removeCovered(path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// unmount unmounts everything that is stacked at path, if anything is.
func unmount(path string) error {
	for {
		// UMOUNT_NOFOLLOW: don't follow a symlink that replaced our file.
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // not mounted, or not any more
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}

// Pinned reports whether a namespace is pinned at path.
func Pinned(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && int64(st.Type) == unix.NSFS_MAGIC
}

// Keep pins the namespace that is pinned at path at another path too, so that it survives the
// removal of the first pin.
func Keep(path, at string) error {
	if Pinned(at) {
		return nil
	}
	_ = os.Remove(at) // left by an interrupted Keep
	if err := touch(at); err != nil {
		return fmt.Errorf("keep namespace %s: %w", path, err)
	}
	if err := unix.Mount(path, at, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("keep namespace %s at %s: %w", path, at, err), os.Remove(at))
	}
	return nil
}

// List returns the paths in dir whose names start with prefix.
func List(dir, prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var paths []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// Do runs fn on a thread that is in the network namespace at path. Goroutines that fn starts are
// not in it.
func Do(path string, fn func() error) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	return OnThread(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return fn()
	})
}

// OnThread runs fn on a new thread, which ends with it. If fn calls runtime.Goexit, as t.FailNow
// does, the calling goroutine ends too.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		if unix.Gettid() == unix.Getpid() {
			// The runtime can't end the main thread, and /proc/PID/ns shows its namespaces as the
			// process's. So block it and use another one.
			defer runtime.UnlockOSThread()
			done <- OnThread(fn)
			return
		}
		done <- fn()
	}()
	err, returned := <-done
	if !returned {
		runtime.Goexit()
	}
	return err
}
