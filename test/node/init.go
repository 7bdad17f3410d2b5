package node

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// initEnv makes the test binary a node's init process. Its value is the path of the file that
// replaces the kernel's boot ID.
const initEnv = "HUSK_TEST_NODE_INIT"

// nameEnv is the host name of a node whose init the test binary is.
const nameEnv = "HUSK_TEST_NODE_NAME"

// Main runs the tests, or a node's init if the process was started as that.
func Main(m *testing.M) {
	Init()
	code := m.Run()
	removeBinaries()
	os.Exit(code)
}

// Init doesn't return if the process was started as a node's init. A program with nodes calls it
// first.
func Init() {
	if bootID := os.Getenv(initEnv); bootID != "" {
		fmt.Fprintln(os.Stderr, "node init:", runInit(bootID))
		os.Exit(1)
	}
}

// runInit is the node's init process. It returns only on errors.
func runInit(bootID string) error {
	type mount struct {
		source, target, fs string
		flags              uintptr
	}
	const wholeProc = "/run/proc"
	for _, m := range []mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"run", "/run", "tmpfs", 0},
		// A user namespace may mount proc only if an unobscured proc mount is visible.
		{"proc", wholeProc, "proc", 0},
		{bootID, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND},
	} {
		if m.target == wholeProc {
			if err := os.Mkdir(wholeProc, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.source, m.target, m.fs, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := unix.Sethostname([]byte(os.Getenv(nameEnv))); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("lo: %w: %s", err, out)
	}
	report := os.NewFile(3, "report")
	if _, err := report.WriteString("ok"); err != nil {
		return err
	}
	_ = report.Close()
	// Reap orphaned processes, as an init must.
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(-1, &status, 0, nil); err == syscall.ECHILD {
			time.Sleep(20 * time.Millisecond)
		}
	}
}
