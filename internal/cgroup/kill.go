package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// PIDs returns the processes in the cgroup and all below it, as this process
// numbers them, sorted. A cgroup that isn't there has none.
func (t *Tree) PIDs(cgroup string) ([]int, error) {
	if err := t.owns(cgroup); err != nil {
		return nil, err
	}
	var out []int
	for _, mount := range t.mounts {
		err := walk(filepath.Join(mount, cgroup), func(sub string) error {
			raw, err := os.ReadFile(filepath.Join(sub, "cgroup.procs"))
			// A threaded v2 cgroup has no such list: its processes are in the
			// list of an ancestor.
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
				return nil
			}
			for field := range strings.FieldsSeq(string(raw)) {
				// A process of a PID namespace that we can't see is listed as 0.
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
	// round is how long Kill waits for those it killed before it looks again.
	round = 100 * time.Millisecond
	// patience is how many rounds a tree may go on forking before it is frozen
	// for the next one.
	patience = 2
)

// Kill kills every process in the cgroup and below, also those forked
// meanwhile, and returns when none is left. A cgroup that isn't there is fine.
// It fails only by ctx: a process may be stuck in the kernel.
func (t *Tree) Kill(ctx context.Context, cgroup string) error {
	for n := 0; ; n++ {
		pids, err := t.PIDs(cgroup)
		if err != nil || len(pids) == 0 {
			return err
		}
		if slices.Contains(pids, os.Getpid()) {
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("kill cgroup %s: this very process is in it", cgroup))
		}
		victims := open(pids)
		if n >= patience {
			t.freeze(cgroup, "FROZEN")
		}
		t.signal(cgroup, victims)
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

// victim is a process by its pidfd, so that no later process of the same
// number can be hit.
type victim struct{ pid, fd int }

func open(pids []int) []victim {
	var out []victim
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			out = append(out, victim{pid, fd})
		}
	}
	return out
}

// signal kills. A number was listed before its pidfd was opened, so it counts
// only if it is listed still.
func (t *Tree) signal(cgroup string, victims []victim) {
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

// freeze sets the state of the v1 freezer, in which even SIGKILL waits for the
// thaw. v2 kills also what is frozen.
func (t *Tree) freeze(cgroup, state string) {
	if mount, ok := t.host.Mounts["freezer"]; ok {
		_ = os.WriteFile(filepath.Join(mount, cgroup, "freezer.state"), []byte(state), 0o644)
	}
}

// await returns when all victims have ended, or after a round.
func await(victims []victim) {
	deadline := time.Now().Add(round)
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

// busy is how long the kernel may take to let go of a cgroup whose last
// process has ended.
const busy = 5 * time.Second

// Remove kills what runs in the cgroup and below and removes it from every
// hierarchy. A cgroup that isn't there is fine.
func (t *Tree) Remove(ctx context.Context, cgroup string) error {
	if err := t.owns(cgroup); err != nil {
		return err
	}
	if err := t.Kill(ctx, cgroup); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, busy)
	defer cancel()
	for _, mount := range t.mounts {
		var all []string
		if err := walk(filepath.Join(mount, cgroup), func(sub string) error { all = append(all, sub); return nil }); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", cgroup, err)
		}
		for _, sub := range slices.Backward(all) {
			if err := rmdir(ctx, sub); err != nil {
				return fmt.Errorf("remove cgroup %s: %w", cgroup, err)
			}
		}
	}
	return nil
}

// rmdir retries while the cgroup is busy: a process is dead to its parent a
// little before its cgroup is rid of it, and nothing tells when.
func rmdir(ctx context.Context, dir string) error {
	for pause := 500 * time.Microsecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY):
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		select {
		case <-ctx.Done():
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		case <-time.After(pause):
		}
	}
}

// OOMKills returns how many processes of the cgroup the kernel has killed for
// want of memory. It is zero where it can't be told.
func (t *Tree) OOMKills(cgroup string) int {
	dir, file := filepath.Join(t.host.Mounts["memory"], cgroup), "memory.oom_control" // Linux 4.13
	if t.host.Mode.Unified() {
		dir, file = filepath.Join(t.host.Mounts[""], cgroup), "memory.events"
	}
	if t.owns(cgroup) != nil {
		return 0
	}
	return oomKills(filepath.Join(dir, file))
}

// oomKills reads a file of lines such as "oom_kill 3".
func oomKills(file string) int {
	raw, _ := os.ReadFile(file)
	for line := range strings.Lines(string(raw)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			return n
		}
	}
	return 0
}

// OtherOOMKills returns how many processes the kernel has killed for want of
// memory in the tree but not in the children of its root that keep wants: so
// many as cgroups had that are no more, if it wants all. It can be told of v2
// only, where a cgroup's count has those of its descendants and outlives them.
func (t *Tree) OtherOOMKills(keep func(child string) bool) int {
	if !t.host.Mode.Unified() {
		return 0
	}
	const events = "memory.events"
	dir := filepath.Join(t.host.Mounts[""], t.root)
	// What is killed meanwhile isn't counted yet.
	n := oomKills(filepath.Join(dir, events))
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() && keep(path.Join(t.root, e.Name())) {
			n -= oomKills(filepath.Join(dir, e.Name(), events))
		}
	}
	return max(n, 0)
}
