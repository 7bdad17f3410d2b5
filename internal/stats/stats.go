// Package stats reads what containers and pods use: from the cgroup file
// system, of v1 and v2 alike, from their network namespaces, and from the disk.
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

// layerAge is how old the measure of a writable layer may be: to take one, the
// whole layer is walked.
const layerAge = 10 * time.Second

// Meter reads what is used. It remembers the last readings, of which a rate is
// made. Its methods are safe for concurrent use.
type Meter struct {
	cgroups host.Cgroup
	inside  Inside

	mu     sync.Mutex
	layers map[string]*measure
	last   map[string]reading
}

// Inside tells what a container uses that has no process in its cgroup, because
// its runtime has a kernel of its own; not ok of any other container.
type Inside func(cgroup string) (u oci.Usage, ok bool)

// New returns a Meter for a host with these cgroups. Inside may be nil.
func New(c host.Cgroup, inside Inside) *Meter {
	return &Meter{cgroups: c, inside: inside, layers: map[string]*measure{}, last: map[string]reading{}}
}

// forgetAfter is how long a reading is remembered that nobody asks for.
const forgetAfter = 15 * time.Minute

// forget drops what nobody asked for in a long time: it is likely gone. The
// caller has m.mu.
func (m *Meter) forget(now time.Time) {
	old := now.Add(-forgetAfter)
	maps.DeleteFunc(m.layers, func(_ string, l *measure) bool { return l.asked.Before(old) })
	maps.DeleteFunc(m.last, func(_ string, r reading) bool { return r.at.Before(old) })
}

// reading is what a cgroup had used of processors at a time.
type reading struct {
	at   time.Time
	used uint64 // ns
	rate uint64 // ns per second before it
}

// rateWindow is the shortest time that a rate is made of.
const rateWindow = 500 * time.Millisecond

// Rate returns the nanoseconds per second that id used since it was asked for
// before; false the first time.
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

// Layer is what a writable layer takes on disk.
type Layer struct {
	Bytes, Inodes int64
	At            time.Time
}

type measure struct {
	asked time.Time // guarded by Meter.mu
	mu    sync.Mutex
	Layer
}

// Layer measures the writable layer of the container with this ID, which is
// below dir.
func (m *Meter) Layer(id, dir string) Layer {
	return m.Tree(id, filepath.Join(dir, "upper"), layerAge)
}

// Tree measures what is below dir, and is known by that name, unless that was done
// a shorter time ago than age.
func (m *Meter) Tree(name, dir string, age time.Duration) Layer {
	now := time.Now()
	m.mu.Lock()
	known := m.layers[name]
	if known == nil {
		m.forget(now)
		known = &measure{}
		m.layers[name] = known
	}
	known.asked = now
	m.mu.Unlock()
	known.mu.Lock()
	defer known.mu.Unlock()
	if now.Sub(known.At) > age {
		known.Layer = Tree(context.Background(), dir)
		known.At = now
	}
	return known.Layer
}

// Tree counts what is below dir on its file system, a file with several names
// once, until ctx ends. What can't be seen, because it goes away meanwhile, takes
// nothing.
func Tree(ctx context.Context, dir string) Layer {
	var l Layer
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
				return filepath.SkipDir // something is mounted there
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

// blockSize is that in which stat(2) counts.
const blockSize = 512

// Disk is a file system.
type Disk struct {
	Bytes, BytesFree, Inodes, InodesFree uint64
}

// Filesystem returns the size of the file system at path; false if it can't be
// told.
func Filesystem(path string) (Disk, bool) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return Disk{}, false
	}
	return Disk{Bytes: st.Blocks * uint64(st.Bsize), BytesFree: st.Bavail * uint64(st.Bsize), Inodes: st.Files, InodesFree: st.Ffree}, true
}
