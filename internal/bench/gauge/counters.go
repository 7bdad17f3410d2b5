package gauge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Counters count what a process and everything that it starts later do from now on, including
// processes that leave its process tree: monitors, runtimes, containers. They are perf events of
// the kernel, which neither stop nor slow the processes.
type Counters struct {
	events [kinds][]int // file descriptors
	why    [kinds]error // why there are none
}

// Kind is what is counted.
type Kind int

// The kinds of counters.
const (
	CPU   Kind = iota // nanoseconds of CPU time
	Execs             // programs executed
	Syncs             // calls of fsync, fdatasync and syncfs
	kinds
)

// tracepoints are the tracepoints of each kind.
var tracepoints = [kinds][]string{
	Execs: {"sched/sched_process_exec"},
	Syncs: {"syscalls/sys_enter_fsync", "syscalls/sys_enter_fdatasync", "syscalls/sys_enter_syncfs"},
}

// Count starts counting for a process. Read returns the error for a kind that can't be counted.
func Count(pid int) *Counters {
	c := &Counters{}
	c.add(CPU, pid, unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK})
	dir, err := tracefs()
	if err != nil {
		c.why[Execs], c.why[Syncs] = err, err
		return c
	}
	defer unix.Close(dir)
	for _, kind := range []Kind{Execs, Syncs} {
		for _, name := range tracepoints[kind] {
			id, err := tracepoint(dir, name)
			if err != nil {
				c.why[kind] = err
				break
			}
			c.add(kind, pid, unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id})
		}
	}
	return c
}

// add opens an event on every thread of the process. The threads and processes that they start
// inherit it. Only a thread that is started at this very moment may be missed.
func (c *Counters) add(kind Kind, pid int, attr unix.PerfEventAttr) {
	attr.Size = uint32(unsafe.Sizeof(attr))
	attr.Bits = unix.PerfBitInherit
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	if err == nil && len(tasks) == 0 {
		err = fmt.Errorf("process %d is gone", pid)
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(filepath.Base(task))
		fd, openErr := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		switch {
		case errors.Is(openErr, unix.ESRCH):
		case openErr != nil:
			err = fmt.Errorf("perf_event_open: %w", openErr)
		default:
			c.events[kind] = append(c.events[kind], fd)
		}
	}
	if err != nil {
		c.why[kind] = err
	}
}

// Read returns the count of a kind, or why it can't be known.
func (c *Counters) Read(kind Kind) (int64, error) {
	if c.why[kind] != nil {
		return 0, c.why[kind]
	}
	var sum int64
	for _, fd := range c.events[kind] {
		var value [8]byte
		if n, err := unix.Read(fd, value[:]); err != nil || n != len(value) {
			return 0, fmt.Errorf("read a perf event: %w", errors.Join(err, unix.EIO))
		}
		sum += int64(binary.NativeEndian.Uint64(value[:]))
	}
	return sum, nil
}

// Close stops counting.
func (c *Counters) Close() {
	for _, fds := range c.events {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	c.events = [kinds][]int{}
}

// tracefs returns a descriptor of the file system with the IDs of tracepoints. It doesn't need to
// be mounted anywhere.
func tracefs() (int, error) {
	fd, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("tracefs: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, fmt.Errorf("tracefs: %w", err)
	}
	dir, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("tracefs: %w", err)
	}
	return dir, nil
}

func tracepoint(tracefs int, name string) (uint64, error) {
	path := "events/" + name + "/id"
	fd, err := unix.Openat(tracefs, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("tracepoint %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var text [32]byte
	n, err := f.Read(text[:])
	if err != nil {
		return 0, fmt.Errorf("tracepoint %s: %w", name, err)
	}
	return strconv.ParseUint(strings.TrimSpace(string(text[:n])), 10, 64)
}
