// Package journal keeps records on disk by key. An owner records what it is about to do before it
// does it.
//
// A journal is one append-only file. Put and Delete are one write(2) each, without an fsync. When
// they return, after some microseconds, the record survives the death of the daemon. Sync makes
// everything written so far survive a power loss, too; calls that run at the same time share one
// fdatasync. After a power loss nothing is left in the kernel that a record could describe, so only
// the few records that outlive a boot need Sync.
//
// Disk space is reserved for teardown: on a full disk Put fails, while PutUsingReserve and Delete
// still work.
//
// The damaged parts of the file are copied to a file beside it and reported. The records around
// them are used. A torn tail, the normal trace of a crash, is dropped: it is at most one record.
// docs/decisions/0057 says what a reader may conclude from the rest.
package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	fileName = "journal"
	newName  = "journal.new"

	// step is how far ahead of its end the file is allocated. reserve is what is allocated beyond
	// that, for PutUsingReserve and Delete alone.
	step    = 256 << 10
	reserve = 64 << 10

	// A file is compacted when it is larger than compactSize and compactRatio times as large as its
	// live records.
	compactSize  = 1 << 20
	compactRatio = 4
)

// Damage is a part of the file that held no readable record.
type Damage struct {
	Offset, Length int
	// Saved is the path of the file that the damaged bytes were copied to, one part after another.
	Saved string
}

// damagedPrefix begins the names of the files with damaged bytes.
const damagedPrefix = "damaged-"

// Damaged returns the files with damaged bytes, sorted. Until someone removes them, records may be
// missing that nothing else can bring back.
func (j *Journal) Damaged() []string {
	files, _ := filepath.Glob(filepath.Join(j.disk.String(), damagedPrefix+"*")) // fails for a bad pattern only
	return files
}

// span is the place of a live record in the file.
type span struct{ offset, size int64 }

// Journal is an open journal. Its methods may be called concurrently.
type Journal struct {
	disk Disk

	// mu guards all fields up to compacting. It is taken after syncing.
	mu        sync.Mutex
	file      File // Invariant: only compact replaces it.
	live      map[string]span
	liveSize  int64 // Invariant: the sum of the sizes in live
	end       int64 // where the next record goes
	allocated int64 // up to where the file has space on disk
	failed    error // why nothing more may be written

	compacting bool
	background sync.WaitGroup

	syncing sync.Mutex
	synced  int64 // up to where the file is synced; guarded by syncing
}

// Open opens the journal in the directory dir and creates both if they don't exist. It fails while
// another process, or another Journal, has the same one open.
func Open(dir string) (*Journal, []Damage, error) {
	_, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = directory(filepath.Dir(dir)).Sync()
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("journal %s: %w", dir, err)
	}
	return OpenOn(directory(dir))
}

// OpenOn opens the journal on a disk and creates it if it doesn't exist.
func OpenOn(disk Disk) (*Journal, []Damage, error) {
	file, err := disk.Open(fileName)
	if err != nil {
		return nil, nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{disk: disk, file: file, live: map[string]span{}}
	damage, err := j.load()
	if err != nil {
		_ = file.Close()
		return nil, nil, fmt.Errorf("journal %s: %w", filepath.Join(disk.String(), fileName), err)
	}
	_ = disk.Remove(newName) // left by an interrupted compaction
	return j, damage, nil
}

func (j *Journal) load() ([]Damage, error) {
	data, err := io.ReadAll(io.NewSectionReader(j.file, 0, math.MaxInt64))
	if err != nil {
		return nil, err
	}
	var found parts
	switch version := versionOf(data); {
	case len(data) < len(header):
		// The file is new, or the write of its header was torn. It held no record.
		if !strings.HasPrefix(header, string(bytes.TrimRight(data, "\x00"))) {
			found.add(0, data)
		}
		if err := j.begin(); err != nil {
			return nil, err
		}
		data = []byte(header)
	case string(data[:len(header)]) == header:
	case version != "":
		return nil, fmt.Errorf("its format is %q, this huskd reads %q: use the newer huskd that wrote it",
			version, versionOf([]byte(header)))
	default:
		// The header itself is damaged. The records have their own checksums.
		found.add(0, data[:len(header)])
		if _, err := j.file.WriteAt([]byte(header), 0); err != nil {
			return nil, err
		}
	}
	return j.replay(data[len(header):], found)
}

// versionOf returns the name of the format that the header of data has, or nothing if it is none.
func versionOf(data []byte) string {
	name, rest, _ := strings.Cut(string(data[:min(len(data), len(header))]), "\n")
	number, ok := strings.CutPrefix(name, headerPrefix)
	if !ok || strings.Trim(number, "0123456789") != "" || strings.Trim(rest, "\x00") != "" {
		return ""
	}
	return name
}

// begin makes the file that of a journal without records. It syncs the header, so that one that is
// missing later was damaged.
func (j *Journal) begin() error {
	if _, err := j.file.WriteAt([]byte(header), 0); err != nil {
		return err
	}
	if err := j.file.Truncate(int64(len(header))); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	return j.disk.Sync() // without its name on disk, a synced file would be lost
}

// parts are the damaged parts of the file.
type parts struct {
	list  []Damage
	bytes []byte
}

func (p *parts) add(offset int, data []byte) {
	p.list = append(p.list, Damage{Offset: offset, Length: len(data)})
	p.bytes = append(p.bytes, data...)
}

// replay rebuilds the index from the bytes after the header. Parts are damaged that were found
// before.
func (j *Journal) replay(data []byte, found parts) ([]Damage, error) {
	base := int64(len(header))
	scan(data, func(offset int, r record) {
		j.index(r.op, string(r.key), span{base + int64(offset), int64(r.size)})
		j.end = base + int64(offset+r.size)
	}, func(offset, length int) {
		part := data[offset : offset+length]
		if offset+length < len(data) || !torn(part, base+int64(offset)) {
			found.add(int(base)+offset, part)
		}
	})
	if err := j.save(&found); err != nil {
		return nil, err
	}
	j.end = max(j.end, base)
	// Bytes beyond the end must not be taken for records once new records precede them.
	if err := j.file.Truncate(j.end); err != nil {
		return nil, err
	}
	j.allocated = j.end
	j.allocate()
	if len(found.list) > 0 {
		j.compact() // so that the damage is reported only once
	}
	return found.list, nil
}

// save writes the damaged bytes to a file of their own. Its name has their checksum, so that it
// replaces no other such file.
func (j *Journal) save(found *parts) error {
	if len(found.list) == 0 {
		return nil
	}
	name := fmt.Sprintf("%s%d-%08x", damagedPrefix, found.list[0].Offset, crc32.Checksum(found.bytes, castagnoli))
	for i := range found.list {
		found.list[i].Saved = filepath.Join(j.disk.String(), name)
	}
	file, err := j.disk.Open(name)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(found.bytes, 0)
	return errors.Join(err, file.Truncate(int64(len(found.bytes))), file.Sync(), file.Close(), j.disk.Sync())
}

func (j *Journal) index(op byte, key string, at span) {
	j.liveSize -= j.live[key].size
	delete(j.live, key)
	if op == opPut {
		j.live[key] = at
		j.liveSize += at.size
	}
}

// allocate reserves disk space for a further step. If there is none, it is the writes that don't
// fit which fail.
func (j *Journal) allocate() {
	want := j.end + step + reserve
	if j.allocated >= want-step/2 {
		return
	}
	if j.file.Allocate(j.end, want-j.end) == nil {
		j.allocated = want
	}
}

// Put sets the record under key.
func (j *Journal) Put(key string, value []byte) error {
	return j.write(opPut, key, value, reserve)
}

// PutUsingReserve is Put that may use the disk space reserved for a full disk. It is for records
// that lead to less on the host, not more: of what is being taken down, or evicted.
func (j *Journal) PutUsingReserve(key string, value []byte) error {
	return j.write(opPut, key, value, 0)
}

// Delete removes the record under key, if there is one.
func (j *Journal) Delete(key string) error {
	j.mu.Lock()
	_, ok := j.live[key]
	j.mu.Unlock()
	if !ok {
		return nil
	}
	return j.write(opDelete, key, nil, 0)
}

// write appends a record, unless fewer than keep bytes of allocated space would be left.
func (j *Journal) write(op byte, key string, value []byte, keep int64) error {
	if len(key)+len(value) > maxBody-16 {
		return fmt.Errorf("journal %s: record %s has %d bytes: at most %d", j.disk, key, len(value), maxBody-16)
	}
	buf := appendRecord(nil, op, key, value)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	j.allocate()
	size := int64(len(buf))
	if j.end+size+keep > j.allocated && j.allocated > j.end {
		// The file system can allocate, but had no space left.
		if err := j.file.Allocate(j.end, size+keep); errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("journal %s: %w: free some space", j.disk, err)
		}
	}
	if _, err := j.file.WriteAt(buf, j.end); err != nil {
		return fmt.Errorf("journal %s: %w", j.disk, err)
	}
	j.index(op, key, span{j.end, size})
	j.end += size
	j.allocated = max(j.allocated, j.end)
	if j.end > compactSize && j.end > compactRatio*j.liveSize && !j.compacting {
		j.compacting = true
		j.background.Go(j.compact)
	}
	return nil
}

// Sync returns when everything that was written before the call survives a power loss. It returns
// early if ctx ends.
func (j *Journal) Sync(ctx context.Context) error {
	j.mu.Lock()
	target, err := j.end, j.failed
	j.mu.Unlock()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- j.syncTo(target) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("journal %s: sync: %w", j.disk, ctx.Err())
	}
}

func (j *Journal) syncTo(target int64) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	if j.synced >= target {
		return nil // another call's fdatasync covered it
	}
	j.mu.Lock()
	end, file, failed := j.end, j.file, j.failed
	j.mu.Unlock()
	if failed != nil {
		return failed
	}
	if err := file.Sync(); err != nil {
		// The kernel may have dropped the dirty pages. What is in the file is no longer known.
		err = fmt.Errorf("journal %s: sync: %w: check the disk and restart huskd", j.disk, err)
		j.mu.Lock()
		j.failed = cmp.Or(j.failed, err)
		j.mu.Unlock()
		return err
	}
	j.synced = end
	return nil
}

// All yields the records whose keys begin with prefix, sorted by key. Of the records that change
// meanwhile it yields the new values.
func (j *Journal) All(prefix string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, key := range j.keys(prefix) {
			value, ok := j.Get(key)
			if ok && !yield(key, value) {
				return
			}
		}
	}
}

func (j *Journal) keys(prefix string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var keys []string
	for key := range j.live {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Get returns the record under key.
func (j *Journal) Get(key string) ([]byte, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.live[key]
	if !ok {
		return nil, false
	}
	buf := make([]byte, at.size)
	if _, err := j.file.ReadAt(buf, at.offset); err != nil {
		return nil, false
	}
	r, ok := parseRecord(buf)
	return r.value, ok
}

// Size returns the number of live records and the bytes of the file.
func (j *Journal) Size() (records int, bytes int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.live), j.end
}

// Close syncs and closes the journal.
func (j *Journal) Close() error {
	j.background.Wait()
	j.syncing.Lock()
	defer j.syncing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Is(j.failed, os.ErrClosed) {
		return nil
	}
	err := j.file.Sync()
	j.failed = fmt.Errorf("journal %s: %w", j.disk, os.ErrClosed)
	return errors.Join(err, j.file.Close())
}
