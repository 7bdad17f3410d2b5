package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollInterval is how often a followed log is looked at without having been told
// of a change: a safety net for file systems without inotify.
const pollInterval = 2 * time.Second

// follow reads what there is and what comes, until the container has ended and
// all is read.
func (r *reader) follow(ctx context.Context) error {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("log %s: watch: %w", r.path, err)
	}
	defer watch.Close()
	if err := watch.Add(filepath.Dir(r.path)); err != nil {
		return fmt.Errorf("log %s: watch: %w", r.path, err)
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	ended := r.options.Ended
	for {
		if err := r.readToEnd(); err != nil {
			return err
		}
		moved, err := r.reopen()
		if err != nil {
			return err
		}
		if moved {
			continue
		}
		if ended == nil && r.options.Ended != nil {
			return r.flush() // what was written before the end is read now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			ended = nil // once more around, for what came last
		case ev := <-watch.Events:
			if ev.Name != r.path {
				continue
			}
		case err := <-watch.Errors:
			if err != nil && !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("log %s: watch: %w", r.path, err)
			}
		case <-tick.C:
		}
	}
}

// reopen turns to the file that is at the path now, if it is another one than
// the one being read, which has been read to its end.
func (r *reader) reopen() (bool, error) {
	now, err := os.Stat(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("log: %w", err)
	}
	if r.file != nil {
		if had, err := r.file.Stat(); err == nil && os.SameFile(had, now) {
			return false, nil
		}
		// What came between the last read and the move.
		if err := r.readToEnd(); err != nil {
			return false, err
		}
	}
	f, err := os.Open(r.path)
	if err == nil && r.file != nil {
		err = r.readMissed(f)
	}
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("log: %w", err)
	}
	r.close()
	r.file = f
	return true, nil
}

// readMissed reads the files that were moved away after the one that was read to its
// end and before the present one: it may have been a while.
func (r *reader) readMissed(present *os.File) error {
	open, err := openRotated(r.path, present)
	if err != nil {
		return err
	}
	defer closeRotated(open)
	// It may have been compressed, so that it is known by how it begins: by a time.
	last := rotatedFile{r.file}.header()
	for i := slices.IndexFunc(open, func(p rotatedFile) bool { return bytes.Equal(p.header(), last) }) + 1; i > 0 && i < len(open); i++ {
		in, err := open[i].reader()
		if err == nil {
			err = r.readFrom(in)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
