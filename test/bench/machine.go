package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci/pause"
	"github.com/huskd/husk/test/testimage"

	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Environment variables that tell this program which process of the machine it is.
const (
	stage        = "HUSK_BENCH_STAGE"
	stageInit    = "init"
	stageMeasure = "measure"
	stagePlan    = "HUSK_BENCH_PLAN"
)

// cniState is where CNI plugins and libcni keep their state.
const cniState = "/var/lib/cni"

// mountPoints creates the directories that the machine mounts over, and returns a function that
// removes them.
func mountPoints() (undo func(), err error) {
	err = os.Mkdir(cniState, 0o755)
	switch {
	case errors.Is(err, fs.ErrExist):
		return func() {}, nil
	case err != nil:
		return nil, err
	}
	return func() { _ = os.Remove(cniState) }, nil
}

// boot runs the machine until everything is measured or ctx ends. All its processes, mounts and
// links end with it.
func boot(ctx context.Context, p plan) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), stage+"="+stageInit, stagePlan+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return fmt.Errorf("the benchmark failed: %w", err)
	}
	return nil
}

// runInit is the machine's init: it sets up the machine, starts the process that measures, and
// reaps the processes that daemons leave behind.
func runInit() error {
	p, err := planned()
	if err != nil {
		return err
	}
	if err := setUp(p); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), stage+"="+stageMeasure)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &status, 0, nil); {
		case err == nil && pid == cmd.Process.Pid && status.ExitStatus() == 0:
			return nil
		case err == nil && pid == cmd.Process.Pid:
			os.Exit(1) // it has printed the reason
		case err != nil && err != unix.EINTR:
			return err
		}
	}
}

func planned() (p plan, err error) {
	err = json.Unmarshal([]byte(os.Getenv(stagePlan)), &p)
	return p, err
}

// setUp turns the namespaces into a machine: with its own /run and an uplink.
func setUp(p plan) error {
	state := filepath.Join(p.Dir, "cni-state")
	if err := os.Mkdir(state, 0o755); err != nil {
		return err
	}
	for _, m := range []struct {
		source, target, fs string
		flags              uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"run", "/run", "tmpfs", 0},
		{state, cniState, "", unix.MS_BIND},
	} {
		if err := unix.Mount(m.source, m.target, m.fs, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// crun refuses the hybrid layout of cgroups.
	if err := unix.Unmount("/sys/fs/cgroup/unified", 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount the unified cgroup hierarchy: %w", err)
	}
	if err := unix.Sethostname([]byte("bench")); err != nil {
		return err
	}
	for _, args := range []string{
		"link set lo up",
		"link add up0 type veth peer name wire0",
		"address add 198.51.100.1/24 dev up0",
		"link set up0 up",
		"link set wire0 up",
		"route add default via 198.51.100.2 dev up0",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// removeCgroups removes a cgroup and its descendants. Their processes were killed and may take a
// moment to exit.
func removeCgroups(root string) {
	var all []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	slices.Reverse(all)
	for _, path := range all {
		for range 200 {
			if err := syscall.Rmdir(path); err == nil || errors.Is(err, syscall.ENOENT) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// newPauseImage returns an image with Husk's pause process, the smallest there is.
func newPauseImage() (*testimage.Image, error) {
	layer, err := testimage.NewLayer(testimage.Gzip, testimage.File("pause", 0o755, pause.Bytes()))
	if err != nil {
		return nil, err
	}
	return testimage.New(ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, ocispec.ImageConfig{Entrypoint: []string{"/pause"}}, layer)
}
