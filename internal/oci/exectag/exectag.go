// Package exectag tags the processes of one exec, so that all of them can be found and killed,
// whatever they do to get away.
package exectag

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/pidfd"
)

// Tag is the RLIMIT_LOCKS of all processes of one exec, and of no other process. The limit has had
// no effect since Linux 2.4.25. It is inherited through fork, exec, setsid and setuid, so a program
// that clears its environment or orphans its children keeps it. Only a program that sets this very
// limit gets rid of the tag.
//
// A cgroup for each exec would serve as well on v2, but on v1 each hierarchy would need one.
type Tag uint64

const (
	limitType = "RLIMIT_LOCKS"
	limitLine = "Max file locks" // in /proc/PID/limits
	// rlimitLocks is Linux's RLIMIT_LOCKS, which neither syscall nor unix defines.
	rlimitLocks = 10
)

// Limit is a resource limit in the runtime spec's process.
type Limit struct {
	Type string `json:"type"`
	Hard uint64 `json:"hard"`
	Soft uint64 `json:"soft"`
}

// New returns a random tag. It is below this process's own limit, which a process without
// CAP_SYS_RESOURCE can't raise.
func New() Tag {
	highest := uint64(1) << 62 // the runtimes parse it as a signed number
	var own unix.Rlimit
	if unix.Getrlimit(rlimitLocks, &own) == nil && own.Max < highest {
		highest = own.Max
	}
	if highest < 2 {
		return Tag(highest)
	}
	return Tag(highest/2 + rand.Uint64N(highest/2))
}

// Add returns limits with the tag, which replaces any RLIMIT_LOCKS.
func (t Tag) Add(limits []Limit) []Limit {
	limits = slices.DeleteFunc(slices.Clone(limits), func(l Limit) bool { return l.Type == limitType })
	return append(limits, Limit{Type: limitType, Hard: uint64(t), Soft: uint64(t)})
}

// on reports whether a process has the tag.
func (t Tag) on(pid int) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	for line := range strings.Lines(string(raw)) {
		if values, ok := strings.CutPrefix(line, limitLine); ok {
			fields := strings.Fields(values)
			return len(fields) > 1 && fields[1] == strconv.FormatUint(uint64(t), 10)
		}
	}
	return false
}

// Kill kills all processes of a cgroup that have the tag. They may fork meanwhile, so it repeats
// until none is left.
func (t Tag) Kill(ctx context.Context, tree *cgroup.Tree, group string) error {
	for {
		pids, err := tree.PIDs(group)
		if err != nil {
			return err
		}
		tagged := t.among(pids)
		if len(tagged) == 0 {
			return nil
		}
		for _, f := range tagged {
			_ = pidfd.Send(f, unix.SIGKILL) // ErrGone is fine
		}
		for _, f := range tagged {
			if waitErr := pidfd.Wait(ctx, f); waitErr != nil {
				err = waitErr
			}
			_ = f.Close()
		}
		if err != nil {
			return fmt.Errorf("kill the processes that it started: %w", err)
		}
	}
}

// among returns the pidfds of those processes that have the tag.
func (t Tag) among(pids []int) []*os.File {
	var out []*os.File
	for _, pid := range pids {
		p, err := pidfd.Identify(pid)
		if err != nil || !t.on(pid) {
			continue
		}
		if f, err := pidfd.Open(p); err == nil {
			out = append(out, f)
		}
	}
	return out
}
