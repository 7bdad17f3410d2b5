package sharedmount

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounted returns a directory that is a private mount.
func mounted(t *testing.T) string {
	t.Helper()
	hosttest.Root(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	must(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func wantShared(t *testing.T, dir string, want bool) {
	t.Helper()
	if got, err := Shared(dir); err != nil || got != want {
		t.Errorf("%s is shared: %v, %v; want %v", dir, got, err, want)
	}
}

// TestMake checks that a process in a mount namespace of its own sees what is mounted later, and
// that Release leaves nothing.
func TestMake(t *testing.T) {
	root := filepath.Join(mounted(t), "root")
	below := filepath.Join(root, "below")
	must(t, os.MkdirAll(below, 0o755))
	wantShared(t, below, false)
	must(t, Make(root))
	wantShared(t, root, true)
	wantShared(t, below, true)

	other := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo; read line; cat "+below+"/file")
	hold, err := other.StdinPipe()
	must(t, err)
	out, err := other.StdoutPipe()
	must(t, err)
	must(t, other.Start())
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	must(t, unix.Mount("tmpfs", below, "tmpfs", 0, ""))
	must(t, os.WriteFile(filepath.Join(below, "file"), []byte("seen"), 0o644))
	must(t, hold.Close())
	answer := make([]byte, 10)
	if n, err := out.Read(answer); string(answer[:n]) != "seen" {
		t.Errorf("the other namespace sees %q, %v", answer[:n], err)
	}
	must(t, other.Wait())

	if released, err := Release(root); released || err != nil {
		t.Errorf("released with a mount in it: %v, %v", released, err)
	}
	must(t, unix.Unmount(below, 0))
	if released, err := Release(root); !released || err != nil {
		t.Errorf("released: %v, %v", released, err)
	}
	if released, err := Release(root); released || err != nil {
		t.Errorf("released again: %v, %v", released, err)
	}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains(string(raw), root) {
		t.Errorf("a mount is left:\n%s", raw)
	}
	if _, err := unix.Getxattr(root, mark, nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the mark is left: %v", err)
	}
}

// TestReleaseBusy checks that Release waits for a process that uses the mount for a moment only,
// and leaves a mount that stays in use.
func TestReleaseBusy(t *testing.T) {
	root := filepath.Join(mounted(t), "root")
	must(t, os.MkdirAll(root, 0o755))
	must(t, Make(root))
	user := exec.Command("sh", "-c", "echo; exec cat")
	user.Dir = root
	hold, err := user.StdinPipe()
	must(t, err)
	out, err := user.StdoutPipe()
	must(t, err)
	must(t, user.Start())
	_, err = out.Read(make([]byte, 1))
	must(t, err)

	if released, err := Release(root); released || err != nil {
		t.Errorf("released while a process works in it: %v, %v", released, err)
	}
	if is, err := IsMount(root); !is || err != nil {
		t.Errorf("it is a mount: %v, %v", is, err)
	}
	time.AfterFunc(busyTime/10, func() { _ = hold.Close() })
	if released, err := Release(root); !released || err != nil {
		t.Errorf("released once the process has ended: %v, %v", released, err)
	}
	must(t, user.Wait())
}

// TestMakeCoversNothing checks that Make refuses a directory in which something is mounted.
func TestMakeCoversNothing(t *testing.T) {
	root := filepath.Join(mounted(t), "root")
	below := filepath.Join(root, "below")
	must(t, os.MkdirAll(below, 0o755))
	must(t, unix.Mount("tmpfs", below, "tmpfs", 0, ""))
	if err := Make(root); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), below) {
		t.Errorf("got %v", err)
	}
	if is, err := IsMount(root); is || err != nil {
		t.Errorf("it is a mount: %v, %v", is, err)
	}
}

// TestReleaseForeign checks that Release leaves mounts that Make didn't make, also where it made
// one before.
func TestReleaseForeign(t *testing.T) {
	root := filepath.Join(mounted(t), "root")
	must(t, os.MkdirAll(root, 0o755))
	must(t, Make(root))
	must(t, unix.Unmount(root, 0))
	between := mounted(t) // may get the number of the mount
	must(t, unix.Mount(root, root, "", unix.MS_BIND, ""))
	if released, err := Release(root); released || err != nil {
		t.Errorf("released: %v, %v, with %s in between", released, err, between)
	}
	must(t, unix.Unmount(root, 0))
}
