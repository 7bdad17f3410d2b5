// Command init is the first process of a virtual machine: it mounts what a
// host has, runs the programs of vm.Programs, tells on the second serial port
// what they said and how they ended, and powers the machine off.
package main

import (
	"errors"
	"fmt"
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
	// What fails from here on shows on the kernel's console, and in that no
	// program is told of.
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
	return runTests()
}

// leaveInitramfs makes the same files the root of a mount that has a parent:
// pivot_root(2), which the runtimes do, refuses the initramfs itself.
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

func runTests() error {
	out, err := os.OpenFile(port, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	programs, err := os.ReadFile(vm.Programs)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(programs)) {
		args := strings.Fields(line)
		name := filepath.Base(args[0])
		fmt.Fprintf(out, "\n%s%s\n", vm.Began, name)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp",
			"HUSK_HOST_TESTS=1", "HUSK_TEST_BINARIES=/usr/bin",
		}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			return err
		}
		fmt.Fprintf(out, "\n%s%s %d\n", vm.Ended, name, cmd.ProcessState.ExitCode())
	}
	// The port is read by this host's qemu at its own pace.
	return unix.IoctlSetInt(int(out.Fd()), unix.TCSBRK, 1)
}
