// Package stats reads the resource usage of containers, pods and the node: from cgroups
// of v1 and v2, from network namespaces, and from the disk.
package stats

import (
	"context"
	"io/fs"
	"maps"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
)

// layerAge is how long the usage of a writable layer is cached, because measuring it walks
// the whole layer.
const layerAge = 10 * time.Second

// Meter reads resource usage. It keeps the last readings to compute rates, and caches the
// usage of directories. Its methods are safe for concurrent use.
type Meter struct {
	cgroups host.Cgroup
	guest   GuestUsage

	mu   sync.Mutex
	dirs map[string]*measurement
	last map[string]reading
}

// GuestUsage returns the usage of a container that has no process in its cgroup because
// its runtime has its own kernel. ok is false for other containers.
type GuestUsage func(cgroup string) (u oci.Usage, ok bool)

// New returns a Meter for a host with these cgroups. guest may be nil.
func New(c host.Cgroup, guest GuestUsage) *Meter {
	return &Meter{cgroups: c, guest: guest, dirs: map[string]*measurement{}, last: map[string]reading{}}
}

// forgetAfter is how long an unused reading is kept.
const forgetAfter = 15 * time.Minute

// forget removes readings that have not been used for long: their subject is probably gone.
// The caller holds m.mu.
func (m *Meter) forget(now time.Time) {
	old := now.Add(-forgetAfter)
	maps.DeleteFunc(m.dirs, func(_ string, d *measurement) bool { return d.used.Before(old) })
	maps.DeleteFunc(m.last, func(_ string, r reading) bool { return r.at.Before(old) })
}

// reading is a cgroup's CPU usage at a point in time.
type reading struct {
	at   time.Time
	used uint64 // ns
	rate uint64 // ns per second up to it
}

// rateWindow is the shortest time that a rate is computed over.
const rateWindow = 500 * time.Millisecond

// Rate returns the nanoseconds of CPU time per second that id used since its previous
// reading. It returns false for the first reading.
func (m *Meter) Rate(id string, at time.Time, used uint64) (uint64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.last[id]
	elapsed := at.Sub(before.at)
	switch {
	case !known || used < before.used:
		m.forget(at)
		m.last[id] = reading{at: at, used: used}
		return 0, false
	case elapsed < rateWindow:
		return before.rate, before.rate > 0
	}
	rate := uint64(float64(used-before.used) / elapsed.Seconds())
	m.last[id] = reading{at, used, rate}
	return rate, true
}

// DirUsage is the disk usage of a directory tree.
type DirUsage struct {
	Bytes, Inodes int64
	At            time.Time
}

// measurement is a cached DirUsage.
type measurement struct {
	used time.Time // when it was last used; guarded by Meter.mu
	mu   sync.Mutex
	DirUsage
}

// Layer returns the usage of the writable layer, below dir, of the container with this ID.
func (m *Meter) Layer(id, dir string) DirUsage {
	return m.Dir(id, filepath.Join(dir, "upper"), layerAge)
}

// Dir returns the usage of the tree below dir. It is cached under name for age.
func (m *Meter) Dir(name, dir string, age time.Duration) DirUsage {
	now := time.Now()
	m.mu.Lock()
	known := m.dirs[name]
	if known == nil {
		m.forget(now)
		known = &measurement{}
		m.dirs[name] = known
	}
	known.used = now
	m.mu.Unlock()
	known.mu.Lock()
	defer known.mu.Unlock()
	if now.Sub(known.At) > age {
		known.DirUsage = MeasureDir(context.Background(), dir)
		known.At = now
	}
	return known.DirUsage
}

// MeasureDir measures the tree below dir on its file system, until ctx ends. Files with
// several hard links count once, and files that vanish meanwhile don't count.
func MeasureDir(ctx context.Context, dir string) DirUsage {
	var l DirUsage
	var device uint64
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return filepath.SkipAll
		}
		if err != nil {
			return nil // it is gone
		}
		info, err := d.Info()
		if err != nil {
			return nil // it is gone
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || st.Nlink > 1 && !d.IsDir() && seen[st.Ino] {
			return nil
		}
		if path == dir {
			device = st.Dev
		}
		if st.Dev != device {
			if d.IsDir() {
				return filepath.SkipDir // a mount point
			}
			return nil
		}
		seen[st.Ino] = st.Nlink > 1
		l.Bytes += st.Blocks * blockSize
		l.Inodes++
		return nil
	})
	return l
}

// blockSize is the unit of stat(2)'s block count.
const blockSize = 512

// Disk is the size of a file system.
type Disk struct {
	Bytes, BytesFree, Inodes, InodesFree uint64
}

// Filesystem returns the size of the file system at path, and false if that fails.
func Filesystem(path string) (Disk, bool) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return Disk{}, false
	}
	return Disk{Bytes: st.Blocks * uint64(st.Bsize), BytesFree: st.Bavail * uint64(st.Bsize), Inodes: st.Files, InodesFree: st.Ffree}, true
}
