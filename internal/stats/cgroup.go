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

// Usage is what a cgroup has used.
type Usage struct {
	At        time.Time
	CPU       CPU
	Memory    Memory
	Processes uint64
	// ProcessLimit is 0 without one.
	ProcessLimit uint64
	HugePages    []HugePages
	Disks        []DiskIO
	// Pressure has nil where the kernel doesn't say.
	Pressure struct{ CPU, Memory, IO *Pressure }
}

// CPU is the use of processors, in nanoseconds.
type CPU struct {
	Used, User, System uint64
	Periods, Throttled uint64
	ThrottledTime      uint64
	// Shares is the weight in v1's terms. Quota per Period, in microseconds, is
	// the limit; 0 without one.
	Shares, Quota, Period uint64
}

// Memory is in bytes. Used is all that is in use, WorkingSet what of it can't
// be dropped at once. Limits are 0 if there is none.
type Memory struct {
	Used, WorkingSet, Max, Limit uint64
	RSS, Cache, Mapped, Kernel   uint64
	InactiveFile                 uint64
	Swap, SwapLimit              uint64
	Failures, OOMKills           uint64
	// Own are the faults without, Faults those with the children's.
	Own, Faults MemoryFaults
}

// MemoryFaults counts page faults.
type MemoryFaults struct{ Minor, Major uint64 }

// HugePages is the use of pages of one size.
type HugePages struct {
	Size       string // as the kernel spells it: "2MB"
	Usage, Max uint64
}

// DiskIO is what went to and from a device.
type DiskIO struct {
	Major, Minor            uint64
	ReadBytes, WrittenBytes uint64
	ReadCount, WrittenCount uint64
}

// Pressure is how long processes waited (PSI).
type Pressure struct{ Some, Full Stall }

// Stall is a line of it: Total in nanoseconds, averages in percent.
type Stall struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}

// Cgroup reads a cgroup, named as in the runtime spec. The error of one that
// isn't there is of the kind not found.
func (m *Meter) Cgroup(cgroup string) (*Usage, error) {
	u := &Usage{At: time.Now()}
	var ok bool
	if m.cgroups.Mode.Unified() {
		ok = m.readV2(u, filepath.Join(m.cgroups.Mounts[""], cgroup))
	} else {
		ok = m.readV1(u, cgroup)
	}
	if u.Processes == 0 && m.inside != nil {
		if inner, told := m.inside(cgroup); told {
			ok = true
			u.CPU.Used, u.Memory.Used, u.Processes = inner.CPU, inner.Memory, inner.Processes
		}
	}
	if !ok {
		return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("cgroup %s is not there", cgroup))
	}
	u.Memory.WorkingSet = u.Memory.Used - min(u.Memory.Used, u.Memory.InactiveFile)
	return u, nil
}

// unlimited is from where on v1's limits mean none: the largest number of
// pages that the kernel counts.
const unlimited = 1 << 62

func limit(v uint64) uint64 {
	if v >= unlimited {
		return 0
	}
	return v
}

// number reads a file of one number; 0 if there is none or it says "max".
func number(dir, file string) uint64 {
	n, _ := strconv.ParseUint(text(dir, file), 10, 64)
	return n
}

func text(dir, file string) string {
	content, _ := os.ReadFile(filepath.Join(dir, file))
	return string(bytes.TrimSpace(content))
}

// table reads a file of lines with a name and a number.
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
