package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// PIDs returns the sorted PIDs, in this process's PID namespace, of the processes in the cgroup and
// all below it. A cgroup that doesn't exist has none.
func (t *Tree) PIDs(cgroup string) ([]int, error) {
	if err := t.owns(cgroup); err != nil {
		return nil, err
	}
	var out []int
	for _, mount := range t.mounts {
		err := walk(filepath.Join(mount, cgroup), func(sub string) error {
			raw, err := os.ReadFile(filepath.Join(sub, "cgroup.procs"))
			// A threaded v2 cgroup has no such list: an ancestor lists its processes.
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
				return nil
			}
			for field := range strings.FieldsSeq(string(raw)) {
				// A process of a PID namespace that isn't below ours is listed as 0.
				if pid, convErr := strconv.Atoi(field); convErr == nil && pid > 0 {
					out = append(out, pid)
				}
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of cgroup %s: %w", cgroup, err)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

const (
	// killRound is how long Kill waits for killed processes to exit before it lists them again.
	killRound = 100 * time.Millisecond
	// roundsUnfrozen is the number of rounds before Kill freezes the cgroup, which may be forking
	// faster than it is killed.
	roundsUnfrozen = 2
)

// Kill kills every process in the cgroup and below, also those forked meanwhile, and returns when
// none is left. A cgroup that doesn't exist is fine. A process may be stuck in the kernel: Kill
// then waits until ctx ends.
func (t *Tree) Kill(ctx context.Context, cgroup string) error {
	for n := 0; ; n++ {
		pids, err := t.PIDs(cgroup)
		if err != nil || len(pids) == 0 {
			return err
		}
		if slices.Contains(pids, os.Getpid()) {
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("kill cgroup %s: it contains this process", cgroup))
		}
		victims := openPIDs(pids)
		if n >= roundsUnfrozen {
			t.freeze(cgroup, "FROZEN")
		}
		t.sigkill(cgroup, victims)
		t.freeze(cgroup, "THAWED")
		await(victims)
		for _, v := range victims {
			_ = unix.Close(v.fd)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("kill cgroup %s: %d processes left: %w", cgroup, len(pids), context.Cause(ctx))
		}
	}
}

// victim is a process with its pidfd, through which no later process with the same PID can be hit.
type victim struct{ pid, fd int }

func openPIDs(pids []int) []victim {
	var out []victim
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			out = append(out, victim{pid, fd})
		}
	}
	return out
}

// sigkill kills the victims. The PIDs were listed before the pidfds were opened, so a victim counts
// only if its PID is still listed.
func (t *Tree) sigkill(cgroup string, victims []victim) {
	if t.host.Mode.Unified() {
		file := filepath.Join(t.host.Mounts[""], cgroup, "cgroup.kill") // Linux 5.14
		if os.WriteFile(file, []byte("1"), 0o644) == nil {
			return
		}
	}
	still, err := t.PIDs(cgroup)
	if err != nil {
		return
	}
	for _, v := range victims {
		if _, ok := slices.BinarySearch(still, v.pid); ok {
			_ = unix.PidfdSendSignal(v.fd, unix.SIGKILL, nil, 0)
		}
	}
}

// freeze sets the state of the v1 freezer. SIGKILL takes effect when the cgroup is thawed. On v2 it
// does nothing: cgroup.kill is atomic, and kills frozen processes too.
func (t *Tree) freeze(cgroup, state string) {
	if mount, ok := t.host.Mounts["freezer"]; ok {
		_ = os.WriteFile(filepath.Join(mount, cgroup, "freezer.state"), []byte(state), 0o644)
	}
}

// await returns when all victims have exited, or after killRound.
func await(victims []victim) {
	deadline := time.Now().Add(killRound)
	for _, v := range victims {
		fds := []unix.PollFd{{Fd: int32(v.fd), Events: unix.POLLIN}}
		for {
			_, err := unix.Poll(fds, max(int(time.Until(deadline).Milliseconds()), 0))
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}
