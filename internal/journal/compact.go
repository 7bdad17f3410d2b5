package journal

import (
	"errors"
	"fmt"
)

// compact replaces the file with one that holds only the live records. Writers go on meanwhile;
// what they write is copied at the end. If anything fails, the old file, which holds the same
// records, stays in use.
func (j *Journal) compact() {
	if err := j.replace(); err != nil {
		_ = j.disk.Remove(newName)
	}
	j.mu.Lock()
	j.compacting = false
	j.mu.Unlock()
}

func (j *Journal) replace() error {
	file, err := j.disk.Open(newName)
	if err != nil {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return errors.Join(err, file.Close())
	}
	old, from := j.snapshot()
	live, end, err := rewrite(file, j.file, old)
	if err == nil {
		err = j.swap(file, live, from, end)
	}
	if err != nil {
		_ = file.Close()
	}
	return err
}

// snapshot returns the places of the live records, and the end of the file at that moment.
func (j *Journal) snapshot() (map[string]span, int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	live := make(map[string]span, len(j.live))
	for key, at := range j.live {
		live[key] = at
	}
	return live, j.end
}

// rewrite copies the records at old in from to the new file to and syncs it. It returns their new
// places and the end of the new file. It needs no lock, as only compact replaces j.file.
func rewrite(to, from File, old map[string]span) (map[string]span, int64, error) {
	live := make(map[string]span, len(old))
	buf := []byte(header)
	for key, at := range old {
		start := len(buf)
		buf = append(buf, make([]byte, at.size)...)
		if _, err := from.ReadAt(buf[start:], at.offset); err != nil {
			return nil, 0, err
		}
		live[key] = span{int64(start), at.size}
	}
	if _, err := to.WriteAt(buf, 0); err != nil {
		return nil, 0, err
	}
	return live, int64(len(buf)), to.Sync()
}

// swap copies what was written to the old file since from to base, the end of the new one, and
// replaces the old file. It doesn't hold j.mu while it waits for the disk, so writers go on.
func (j *Journal) swap(file File, live map[string]span, from, base int64) error {
	j.syncing.Lock() // no Sync may succeed meanwhile for the old file
	defer j.syncing.Unlock()
	j.mu.Lock()
	until := j.end
	j.mu.Unlock()
	if err := j.copyTail(file, from, until, base); err != nil {
		return err
	}
	if j.synced > from { // a part of the tail was synced already
		if err := file.Sync(); err != nil {
			return err
		}
	}
	if err := j.exchange(file, live, span{from, until - from}, base); err != nil {
		return err
	}
	j.synced = base
	if err := j.disk.Sync(); err != nil {
		// It is not known now which of the two files a power loss would leave.
		j.mu.Lock()
		j.failed = fmt.Errorf("journal %s: sync: %w: check the disk and restart huskd", j.disk, err)
		j.mu.Unlock()
	}
	return nil
}

// copyTail copies the old file's bytes in [from, until) to the new one at base.
func (j *Journal) copyTail(file File, from, until, base int64) error {
	tail := make([]byte, until-from)
	if _, err := j.file.ReadAt(tail, from); err != nil {
		return err
	}
	_, err := file.WriteAt(tail, base)
	return err
}

// exchange copies what was written after the copied tail, and makes file the journal's.
func (j *Journal) exchange(file File, live map[string]span, copied span, base int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	from := copied.offset
	if err := j.copyTail(file, from+copied.size, j.end, base+copied.size); err != nil {
		return err
	}
	if err := j.disk.Rename(newName, fileName); err != nil {
		return err
	}
	j.liveSize = 0
	for key, at := range j.live {
		if at.offset >= from {
			at.offset += base - from
		} else {
			at = live[key]
		}
		j.live[key] = at
		j.liveSize += at.size
	}
	_ = j.file.Close()
	j.file = file
	j.end += base - from
	j.allocated = j.end
	j.allocate()
	return nil
}
