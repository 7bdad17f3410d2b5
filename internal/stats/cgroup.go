package stats

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// Usage is the resource usage of a cgroup.
type Usage struct {
	At        time.Time
	CPU       CPU
	Memory    Memory
	Processes uint64
	// ProcessLimit is 0 if there is none.
	ProcessLimit uint64
	HugePages    []HugePages
	Disks        []DiskIO
	// Pressure is nil where the kernel doesn't report it.
	Pressure struct{ CPU, Memory, IO *Pressure }
}

// CPU is CPU usage; times are in nanoseconds.
type CPU struct {
	Used, User, System uint64
	Periods, Throttled uint64
	ThrottledTime      uint64
	// Shares is the weight on v1's scale. Quota per Period, in microseconds, is the limit;
	// Quota is 0 if there is none.
	Shares, Quota, Period uint64
}

// Memory is memory usage in bytes. WorkingSet is the part of Used that can't be reclaimed
// immediately. Limits are 0 if there are none.
type Memory struct {
	Used, WorkingSet, Max, Limit uint64
	RSS, Cache, Mapped, Kernel   uint64
	InactiveFile                 uint64
	Swap, SwapLimit              uint64
	Failures, OOMKills           uint64
	// Faults include those of child cgroups, Own don't.
	Own, Faults MemoryFaults
}

// MemoryFaults counts page faults.
type MemoryFaults struct{ Minor, Major uint64 }

// HugePages is the usage of huge pages of one size.
type HugePages struct {
	Size       string // as the kernel spells it: "2MB"
	Usage, Max uint64
}

// DiskIO is the I/O of one device.
type DiskIO struct {
	Major, Minor            uint64
	ReadBytes, WrittenBytes uint64
	ReadCount, WrittenCount uint64
}

// Pressure is pressure stall information (PSI).
type Pressure struct{ Some, Full Stall }

// Stall is a line of PSI: Total is in nanoseconds, averages are in percent.
type Stall struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}

// Cgroup reads the usage of a cgroup, named as in the runtime spec. If the cgroup doesn't
// exist, it returns errdefs.ErrNotFound.
func (m *Meter) Cgroup(cgroup string) (*Usage, error) {
	u := &Usage{At: time.Now()}
	var ok bool
	if m.cgroups.Mode.Unified() {
		ok = m.readV2(u, filepath.Join(m.cgroups.Mounts[""], cgroup))
	} else {
		ok = m.readV1(u, cgroup)
	}
	if u.Processes == 0 && m.guest != nil {
		if inner, found := m.guest(cgroup); found {
			ok = true
			u.CPU.Used, u.Memory.Used, u.Processes = inner.CPU, inner.Memory, inner.Processes
		}
	}
	if !ok {
		return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("cgroup %s does not exist", cgroup))
	}
	u.Memory.WorkingSet = u.Memory.Used - min(u.Memory.Used, u.Memory.InactiveFile)
	return u, nil
}

// unlimited is the least value that means no limit in v1. The kernel writes the largest
// number of bytes in whole pages.
const unlimited = 1 << 62

func limit(v uint64) uint64 {
	if v >= unlimited {
		return 0
	}
	return v
}

// number reads a file with one number. It returns 0 if the file is missing or has "max".
func number(dir, file string) uint64 {
	n, _ := strconv.ParseUint(text(dir, file), 10, 64)
	return n
}

func text(dir, file string) string {
	content, _ := os.ReadFile(filepath.Join(dir, file))
	return string(bytes.TrimSpace(content))
}

// table reads a file whose lines have a name and a number.
func table(dir, file string) map[string]uint64 {
	content, _ := os.ReadFile(filepath.Join(dir, file))
	out := map[string]uint64{}
	for line := range bytes.Lines(content) {
		name, value, ok := strings.Cut(string(bytes.TrimSpace(line)), " ")
		if n, err := strconv.ParseUint(value, 10, 64); ok && err == nil {
			out[name] = n
		}
	}
	return out
}

// pressure reads a PSI file.
func pressure(dir, file string) *Pressure {
	content, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	p := &Pressure{}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		var kind string
		var s Stall
		if _, err := fmt.Sscanf(lines.Text(), "%s avg10=%f avg60=%f avg300=%f total=%d", &kind, &s.Avg10, &s.Avg60, &s.Avg300, &s.Total); err != nil {
			continue
		}
		s.Total *= uint64(time.Microsecond)
		if kind == "full" {
			p.Full = s
		} else {
			p.Some = s
		}
	}
	return p
}
