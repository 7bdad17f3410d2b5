// Package exectag tells the processes of one exec from all others of a container,
// whatever they do to get away: so that they can be ended.
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

// Mark is what all processes of one exec have in common, and nothing else has:
// the value of their RLIMIT_LOCKS. That limit has had no effect since Linux
// 2.4.25, is inherited through fork, exec, setsid and setuid alike, and a
// program that clears its environment or orphans its children keeps it. A
// cgroup of its own would serve as well, but not on v1, where there would have
// to be one in each hierarchy. It can be got rid of, by setting the limit, by
// a program that means to.
type Mark uint64

const (
	markLimit = "RLIMIT_LOCKS"
	markLine  = "Max file locks"
	// rlimitLocks is RLIMIT_LOCKS of Linux, which the packages don't have.
	rlimitLocks = 10
)

// Limit is a resource limit of a runtime spec's process.
type Limit struct {
	Type string `json:"type"`
	Hard uint64 `json:"hard"`
	Soft uint64 `json:"soft"`
}

// New returns a value that nobody else's limit is, below our own limit, as
// it must be without CAP_SYS_RESOURCE.
func New() Mark {
	highest := uint64(1) << 62 // the runtimes parse it as a signed number
	var own unix.Rlimit
	if unix.Getrlimit(rlimitLocks, &own) == nil && own.Max < highest {
		highest = own.Max
	}
	if highest < 2 {
		return Mark(highest)
	}
	return Mark(highest/2 + rand.Uint64N(highest/2))
}

// Add returns limits with the mark in place of any limit of its kind.
func (m Mark) Add(limits []Limit) []Limit {
	limits = slices.DeleteFunc(slices.Clone(limits), func(l Limit) bool { return l.Type == markLimit })
	return append(limits, Limit{Type: markLimit, Hard: uint64(m), Soft: uint64(m)})
}

// on says whether a process has the mark.
func (m Mark) on(pid int) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	for line := range strings.Lines(string(raw)) {
		if values, ok := strings.CutPrefix(line, markLine); ok {
			fields := strings.Fields(values)
			return len(fields) > 1 && fields[1] == strconv.FormatUint(uint64(m), 10)
		}
	}
	return false
}

// Kill kills all processes of a cgroup that have the mark, until a look at all
// of them finds none: they may fork meanwhile.
func (m Mark) Kill(ctx context.Context, tree *cgroup.Tree, group string) error {
	for {
		pids, err := tree.PIDs(group)
		if err != nil {
			return err
		}
		marked := m.among(pids)
		if len(marked) == 0 {
			return nil
		}
		for _, f := range marked {
			// ErrGone is as good.
			_ = pidfd.Send(f, unix.SIGKILL)
		}
		for _, f := range marked {
			if waitErr := pidfd.Wait(ctx, f); waitErr != nil {
				err = waitErr
			}
			_ = f.Close()
		}
		if err != nil {
			return fmt.Errorf("kill what it started: %w", err)
		}
	}
}

// among returns the pidfds of those processes that have the mark.
func (m Mark) among(pids []int) []*os.File {
	var out []*os.File
	for _, pid := range pids {
		p, err := pidfd.Identify(pid)
		if err != nil || !m.on(pid) {
			continue
		}
		if f, err := pidfd.Open(p); err == nil {
			out = append(out, f)
		}
	}
	return out
}
