// Package filewatch waits for changes of files that people and programs write, often in several
// steps, and whose directories may be missing or be replaced.
package filewatch

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// maxDelay is how long Wait lasts if a directory keeps changing.
const maxDelay = time.Second

// Watch waits for changes in directories.
type Watch struct {
	// Quiet is how long nothing may have changed before Wait returns.
	Quiet   time.Duration
	watcher *fsnotify.Watcher
	dirs    map[string]bool
}

// New returns a Watch without directories. Without inotify, it also returns the error, and Wait
// returns only when its limit has passed.
func New(quiet time.Duration) (*Watch, error) {
	w := &Watch{Quiet: quiet, dirs: map[string]bool{}}
	var err error
	if w.watcher, err = fsnotify.NewWatcher(); err != nil {
		w.watcher = &fsnotify.Watcher{} // without events
		return w, err
	}
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() {
	if w.watcher.Events != nil {
		_ = w.watcher.Close()
	}
}

// Add watches a directory, and all above it, because each may be missing or be replaced. To find
// those that were made or replaced, it is called before each reading. It returns why the directory
// can't be watched, which may be that it is missing: then a watch above it reports when it appears.
func (w *Watch) Add(dir string) error {
	if w.watcher.Events == nil {
		return nil // New has said so
	}
	dir = filepath.Clean(dir)
	w.dirs[dir] = true
	err := w.watcher.Add(dir)
	for dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		_ = w.watcher.Add(dir)
	}
	return err
}

// Wait returns when a directory or something in it has changed, when wake has an item, when ctx has
// ended, or at the limit.
func (w *Watch) Wait(ctx context.Context, limit time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var latest <-chan time.Time // set by the first change
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
			return
		case <-timer.C:
			return
		case <-latest:
			return
		case <-w.watcher.Errors: // the queue overflowed
			return
		case e := <-w.watcher.Events:
			if w.concerns(e.Name) {
				timer.Reset(w.Quiet)
				if latest == nil {
					latest = time.After(maxDelay)
				}
			}
		}
	}
}

// concerns reports whether a change of path can affect what is in the directories.
func (w *Watch) concerns(path string) bool {
	for dir := range w.dirs {
		if path == dir || filepath.Dir(path) == dir || strings.HasPrefix(dir, path+"/") {
			return true
		}
	}
	return false
}
