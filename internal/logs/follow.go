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

// pollInterval is the interval at which a followed log is read even without an inotify event, for
// file systems without inotify.
const pollInterval = 2 * time.Second

// follow reads the log until the container has ended and everything is read.
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
		switched, err := r.reopen()
		if err != nil {
			return err
		}
		if switched {
			continue
		}
		if ended == nil && r.options.Ended != nil {
			return r.flush() // everything written before the end has been read
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			ended = nil // read once more, for the last lines
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

// reopen switches to the current file at the path, if it isn't the one being read. It reads that
// one to its end first.
func (r *reader) reopen() (switched bool, err error) {
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
		// The file may have grown between the last read and its rotation.
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

// readMissed reads the files between the one that was read to its end and the current one. There
// may be several after fast rotations.
func (r *reader) readMissed(current *os.File) error {
	open, err := openRotated(r.path, current)
	if err != nil {
		return err
	}
	defer closeRotated(open)
	// The file may have been compressed, so it is identified by its beginning, which has a time.
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
