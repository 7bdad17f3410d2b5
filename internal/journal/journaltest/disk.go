// Package journaltest has a disk in memory for tests, whose power can be cut.
// What was synced is then there; what was written since may be there in part, a
// sector without the one before it, as a real disk may reorder what nobody told
// it to keep in order. Names are kept in the order in which they were made, as
// journaling file systems do, but not beyond what was synced for sure.
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

// sector is what a disk writes whole or not at all.
const sector = 512

// Disk is a directory on such a disk. The zero value is empty and ready for use.
type Disk struct {
	mu      sync.Mutex
	names   map[string]*content // as they are
	durable map[string]*content // as they are after a power loss at least
	renamed []map[string]*content
	lives   int // that have ended
	full    bool
	broken  bool
	// Writes counts what was written to files.
	Writes int
}

// content is a file.
type content struct {
	data    []byte
	durable []byte
	since   []write // the last sync
	open    bool
}

// write is one that isn't synced: data at an offset, or a file's new size if
// data is nil.
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

// Mount returns the disk for one who lives until the next Kill or Cut, and can
// change nothing afterwards.
func (d *Disk) Mount() journal.Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names, d.durable = map[string]*content{}, map[string]*content{}
	}
	return mounted{d, d.lives}
}

// SetFull has every write fail from now on that needs space, or not any more.
func (d *Disk) SetFull(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// SetBroken has every sync fail from now on, or not any more.
func (d *Disk) SetBroken(broken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = broken
}

// Kill ends whoever has files open: they can't change them any more. All that
// was written stays.
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

// Cut cuts the power: of what isn't synced, r chooses what is there afterwards.
func (d *Disk) Cut(r *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
	if keep := r.IntN(len(d.renamed) + 1); keep > 0 {
		d.durable = d.renamed[keep-1]
	}
	d.names, d.renamed = maps.Clone(d.durable), nil
	for _, name := range slices.Sorted(maps.Keys(d.names)) { // r must be asked in one order
		d.names[name].cut(r)
	}
}

func (c *content) cut(r *rand.Rand) {
	data := slices.Clone(c.durable)
	whole := r.IntN(2) == 0 // half of the time the cut is a clean one
	last := r.IntN(len(c.since) + 1)
	for i, w := range c.since {
		switch {
		case whole:
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

// sectors are the parts of a write that are written each as a whole.
func (w write) sectors() (parts []write) {
	offset, data := w.offset, w.data
	for len(data) > 0 {
		n := min(sector-int(offset%sector), len(data))
		parts = append(parts, write{offset, data[:n]})
		offset, data = offset+int64(n), data[n:]
	}
	return parts
}

// Content returns a file as it is now.
func (d *Disk) Content(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.names[name]; c != nil {
		return slices.Clone(c.data)
	}
	return nil
}

// Damage flips a bit of a file, or cuts off its end there.
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

// mounted is the disk as one life has it.
type mounted struct {
	d    *Disk
	life int
}

func (m mounted) String() string { return "disk" }

// names runs fn, which may change names, if the life goes on.
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

// file is an open one.
type file struct {
	mounted
	c *content
}

// change changes the file if whoever opened it lives.
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
