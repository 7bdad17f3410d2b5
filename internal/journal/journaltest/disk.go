// Package journaltest provides a disk in memory whose power can be cut. After that it has
// everything that was synced, and any part of what was written since: a sector may have been
// written without the one before it, as real disks reorder writes. Changes of names are kept in
// order, as by journaling file systems, but those that weren't synced may be lost.
package journaltest

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/huskd/husk/internal/journal"
)

// sector is the size that a disk writes whole or not at all.
const sector = 512

// Disk is a directory on such a disk. The zero value is an empty one.
type Disk struct {
	mu      sync.Mutex
	names   map[string]*content   // the current files
	durable map[string]*content   // the files as of the last Sync
	renamed []map[string]*content // the files after each change of names since
	lives   int                   // how often Kill or Cut was called
	full    bool
	broken  bool
	// Writes counts the writes to files.
	Writes int
}

// content is a file.
type content struct {
	data    []byte
	durable []byte  // data as of the last Sync
	since   []write // the writes since
	open    bool
}

// write is an unsynced write: of data at an offset, or of the file's new size if data is nil.
type write struct {
	offset int64
	data   []byte
}

func (w write) apply(to []byte) []byte {
	if w.data == nil {
		return resize(to, int(w.offset))
	}
	if end := int(w.offset) + len(w.data); end > len(to) {
		to = resize(to, end)
	}
	copy(to[w.offset:], w.data)
	return to
}

func resize(data []byte, size int) []byte {
	if size <= len(data) {
		return data[:size]
	}
	return append(data, make([]byte, size-len(data))...)
}

// Mount returns the disk for a user who can change it until the next Kill or Cut.
func (d *Disk) Mount() journal.Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names, d.durable = map[string]*content{}, map[string]*content{}
	}
	return mounted{d, d.lives}
}

// SetFull makes every allocation fail, or none.
func (d *Disk) SetFull(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// SetBroken makes every Sync fail, or none.
func (d *Disk) SetBroken(broken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = broken
}

// Kill ends all users of the disk: their open files can't be changed any more. Everything that was
// written stays.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
}

func (d *Disk) kill() {
	d.lives++
	for _, c := range d.names {
		c.open = false
	}
}

// Cut cuts the power. r chooses which of the unsynced writes survive.
func (d *Disk) Cut(r *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
	if keep := r.IntN(len(d.renamed) + 1); keep > 0 {
		d.durable = d.renamed[keep-1]
	}
	d.names, d.renamed = maps.Clone(d.durable), nil
	for _, name := range slices.Sorted(maps.Keys(d.names)) { // sorted, so that r has the same effect each time
		d.names[name].cut(r)
	}
}

func (c *content) cut(r *rand.Rand) {
	data := slices.Clone(c.durable)
	ordered := r.IntN(2) == 0 // half of the time the disk didn't reorder writes
	last := r.IntN(len(c.since) + 1)
	for i, w := range c.since {
		switch {
		case ordered:
			if i < last {
				data = w.apply(data)
			}
		case w.data == nil:
			if r.IntN(2) == 0 {
				data = w.apply(data)
			}
		default:
			for _, part := range w.sectors() {
				if r.IntN(3) > 0 {
					data = part.apply(data)
				}
			}
		}
	}
	c.data, c.durable, c.since = data, slices.Clone(data), nil
}

// sectors splits a write at the borders of sectors.
func (w write) sectors() (parts []write) {
	offset, data := w.offset, w.data
	for len(data) > 0 {
		n := min(sector-int(offset%sector), len(data))
		parts = append(parts, write{offset, data[:n]})
		offset, data = offset+int64(n), data[n:]
	}
	return parts
}

// Content returns the current content of a file.
func (d *Disk) Content(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.names[name]; c != nil {
		return slices.Clone(c.data)
	}
	return nil
}

// Damage flips a bit of a file, or truncates the file there.
func (d *Disk) Damage(name string, at int, truncate bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.names[name]
	if c == nil || at >= len(c.data) {
		return
	}
	if truncate {
		c.data = c.data[:at]
	} else {
		c.data[at] ^= 1 << (at % 8)
	}
	c.durable, c.since = slices.Clone(c.data), nil
}

// mounted is the disk for one user.
type mounted struct {
	d    *Disk
	life int
}

func (m mounted) String() string { return "disk" }

// names runs fn, which may change names, unless the user was ended.
func (m mounted) names(fn func(names map[string]*content) error) error {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.life != m.d.lives {
		return os.ErrClosed
	}
	if err := fn(m.d.names); err != nil {
		return err
	}
	m.d.renamed = append(m.d.renamed, maps.Clone(m.d.names))
	return nil
}

func (m mounted) Open(name string) (journal.File, error) {
	var c *content
	err := m.names(func(names map[string]*content) error {
		if c = names[name]; c == nil {
			c = &content{}
			names[name] = c
		}
		if c.open {
			return fmt.Errorf("%s: %w", name, syscall.EWOULDBLOCK)
		}
		c.open = true
		return nil
	})
	return &file{m, c}, err
}

func (m mounted) Rename(from, to string) error {
	return m.names(func(names map[string]*content) error {
		if names[from] == nil {
			return os.ErrNotExist
		}
		names[to] = names[from]
		delete(names, from)
		return nil
	})
}

func (m mounted) Remove(name string) error {
	return m.names(func(names map[string]*content) error {
		if names[name] == nil {
			return os.ErrNotExist
		}
		delete(names, name)
		return nil
	})
}

func (m mounted) Sync() error {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	switch {
	case m.life != m.d.lives:
		return os.ErrClosed
	case m.d.broken:
		return syscall.EIO
	}
	m.d.durable, m.d.renamed = maps.Clone(m.d.names), nil
	return nil
}

// file is an open file.
type file struct {
	mounted
	c *content
}

// change changes the file, unless its user was ended.
func (f *file) change(w write) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.life != f.d.lives || !f.c.open {
		return os.ErrClosed
	}
	f.c.data = w.apply(f.c.data)
	f.c.since = append(f.c.since, w)
	f.d.Writes++
	return nil
}

func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	n := 0
	if offset < int64(len(f.c.data)) {
		n = copy(p, f.c.data[offset:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, offset int64) (int, error) {
	if err := f.change(write{offset, slices.Clone(p)}); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *file) Truncate(size int64) error { return f.change(write{offset: size}) }

func (f *file) Allocate(_, _ int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.full {
		return syscall.ENOSPC
	}
	return nil
}

func (f *file) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	switch {
	case f.life != f.d.lives || !f.c.open:
		return os.ErrClosed
	case f.d.broken:
		return syscall.EIO
	}
	f.c.durable, f.c.since = slices.Clone(f.c.data), nil
	return nil
}

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.life == f.d.lives {
		f.c.open = false
	}
	return nil
}
