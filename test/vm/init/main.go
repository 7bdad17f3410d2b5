// Command init is the first process of a virtual machine. It mounts a host's usual file systems,
// runs the programs of vm.Programs, writes their output and exit codes to the second serial port,
// and powers the machine off or starts systemd. As a unit of systemd it does the same with the
// programs of vm.SystemdPrograms.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/test/vm"
)

const port = "/dev/ttyS1"

func main() {
	if os.Getpid() != 1 {
		if err := runTests(vm.SystemdPrograms); err != nil {
			fmt.Fprintln(os.Stderr, "init:", err)
			os.Exit(1)
		}
		return
	}
	// Failures from here on appear on the kernel's console, and the programs' outcomes are missing.
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	if err := leaveInitramfs(); err != nil {
		return fmt.Errorf("leave the initramfs: %w", err)
	}
	for _, m := range []struct{ kind, target, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", "mode=620,ptmxmode=666"},
		{"tmpfs", "/dev/shm", ""},
		{"mqueue", "/dev/mqueue", ""},
		{"tmpfs", "/run", "mode=755"},
		{"tmpfs", "/tmp", "mode=1777"},
		{"cgroup2", "/sys/fs/cgroup", ""},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.target, m.kind, 0, m.options); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := unix.Sethostname([]byte("vm")); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := runTests(vm.Programs); err != nil {
		return err
	}
	if _, err := os.Stat(vm.SystemdPrograms); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return becomeSystemd()
}

// becomeSystemd starts systemd as if the host had just booted: it unmounts proc, sys and the
// cgroups, so that systemd mounts them in its own way.
func becomeSystemd() error {
	for _, target := range []string{"/sys/fs/cgroup", "/run", "/dev/shm", "/dev/mqueue", "/dev/pts"} {
		if err := unix.Unmount(target, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
	const systemd = "/lib/systemd/systemd"
	// There is no journal yet, so systemd logs to the kernel's console.
	err := unix.Exec(systemd, []string{systemd, "--log-target=journal-or-kmsg"}, []string{"PATH=" + searched})
	return fmt.Errorf("%s: %w", systemd, err)
}

// leaveInitramfs makes the same files the root of a mount with a parent: pivot_root(2), which the
// runtimes call, refuses to leave the initramfs itself.
func leaveInitramfs() error {
	const root = "/root"
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("/", root, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}

const searched = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// runTests runs the programs that a file lists.
func runTests(list string) error {
	out, err := os.OpenFile(port, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	programs, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(programs)) {
		args := strings.Fields(line)
		name := filepath.Base(args[0])
		fmt.Fprintf(out, "\n%s%s\n", vm.Began, name)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = []string{
			"PATH=" + searched, "HOME=/tmp",
			"HUSK_HOST_TESTS=1", "HUSK_TEST_BINARIES=/usr/local/bin",
		}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			return err
		}
		fmt.Fprintf(out, "\n%s%s %d\n", vm.Ended, name, cmd.ProcessState.ExitCode())
	}
	// qemu reads the port at its own pace.
	return unix.IoctlSetInt(int(out.Fd()), unix.TCSBRK, 1)
}
