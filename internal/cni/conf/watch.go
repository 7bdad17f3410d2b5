package conf

import (
	"context"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long a directory has to be left alone before it is
	// read: agents write in several steps.
	settleTime = 100 * time.Millisecond
	// restlessTime is how long one that is never left alone isn't read.
	restlessTime = time.Second
	// vacantTime is how long a directory that had networks has to be without
	// any file before that is believed: agents remove, then write.
	vacantTime = 3 * time.Second
	// resyncTime is between two looks at a directory of which nothing is heard:
	// plugins may have been installed.
	resyncTime = 10 * time.Second
)

// State is what is known of a watched directory. It isn't changed once handed
// out.
type State struct {
	Found
	// Stale says why Found.Networks are those of an earlier reading: what is
	// there now can't be used. It is empty otherwise.
	Stale string
	// Err says why there is no network though there should be: the directory
	// can't be read, or no file in it is usable.
	Err error
}

// Watch follows a directory of configurations.
type Watch struct {
	dir    string
	usable func(*libcni.NetworkConfigList) error
	log    *slog.Logger
	state  atomic.Pointer[State]
	vacant time.Time // since when it has no file though it had networks
}

// NewWatch reads the directory for the first time. Run follows it.
func NewWatch(dir string, usable func(*libcni.NetworkConfigList) error, log *slog.Logger) *Watch {
	w := &Watch{dir: filepath.Clean(dir), usable: usable, log: log}
	w.state.Store(&State{})
	w.reload()
	return w
}

// State returns what is known now.
func (w *Watch) State() State { return *w.state.Load() }

// Run follows the directory until ctx ends. It may not exist, appear, or be
// replaced by another.
func (w *Watch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		w.turn(ctx)
	}
}

// turn reads the directory and returns when there may be something new. Each
// time it watches afresh, before it reads: what was watched may have been
// replaced.
func (w *Watch) turn(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("cni: changes of the configuration are seen late", "directory", w.dir, "error", err)
		watcher = &fsnotify.Watcher{} // which tells nothing
	} else {
		defer watcher.Close()
		w.watch(watcher)
	}
	w.reload()
	if err == nil {
		w.watch(watcher) // the directories of networks that are new
	}
	pause := resyncTime
	if !w.vacant.IsZero() {
		pause = vacantTime
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var restless <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-restless:
			return
		case e := <-watcher.Events:
			if w.concerns(e.Name) {
				timer.Reset(settleTime)
				if restless == nil {
					restless = time.After(restlessTime)
				}
			}
		case <-watcher.Errors: // the queue overflowed
			return
		}
	}
}

// watch adds the directory, those that hold further plugins of its networks,
// and every directory above, any of which may be replaced. What isn't there is
// heard of through its parent.
func (w *Watch) watch(watcher *fsnotify.Watcher) {
	_ = watcher.Add(w.dir)
	for _, n := range w.State().Networks {
		_ = watcher.Add(filepath.Join(w.dir, n.List.Name))
	}
	for path := w.dir; path != "/" && path != "."; {
		path = filepath.Dir(path)
		_ = watcher.Add(path)
	}
}

// concerns says whether a change of path can change what is configured.
func (w *Watch) concerns(path string) bool {
	return path == w.dir || strings.HasPrefix(path, w.dir+"/") || strings.HasPrefix(w.dir, path+"/")
}

func same(a, b Found) bool {
	return reflect.DeepEqual(a.Networks, b.Networks) && reflect.DeepEqual(a.Skipped, b.Skipped)
}

// reload reads the directory and decides what to go by.
func (w *Watch) reload() {
	before := w.State()
	found, err := Load(w.dir, w.usable)
	now := State{Found: found}
	empty := err == nil && len(found.Networks)+len(found.Skipped) == 0
	switch {
	case err != nil:
		now.Stale = err.Error()
	case len(found.Networks) == 0 && !empty:
		now.Stale = "no usable configuration is left in " + w.dir
	case empty && len(before.Networks) > 0 && w.young():
		now.Stale = w.dir + " is empty"
	}
	if now.Stale == "" || !empty {
		w.vacant = time.Time{}
	}
	switch {
	case now.Stale != "" && len(before.Networks) > 0:
		now.Networks = before.Networks
	case err != nil:
		now.Stale, now.Err = "", err
	case now.Stale != "":
		now.Stale, now.Err = "", &unusableError{w.dir, found.Skipped}
	}
	w.state.Store(&now)
	w.tell(before, now)
}

// young says whether the directory is empty only since a moment ago.
func (w *Watch) young() bool {
	if w.vacant.IsZero() {
		w.vacant = time.Now()
	}
	return time.Since(w.vacant) < vacantTime
}

// tell logs what has changed, once.
func (w *Watch) tell(before, now State) {
	if before.Stale == now.Stale && same(before.Found, now.Found) && (before.Err == nil) == (now.Err == nil) {
		return
	}
	for _, s := range now.Skipped {
		w.log.Warn("cni: a configuration is skipped", "file", filepath.Join(w.dir, s.File), "why", s.Why)
	}
	var names []string
	for _, n := range now.Networks {
		names = append(names, n.List.Name)
	}
	switch {
	case now.Stale != "":
		w.log.Warn("cni: the last good configuration is kept", "networks", names, "why", now.Stale)
	case len(names) > 0 || len(before.Networks) > 0:
		w.log.Info("cni: networks are configured", "directory", w.dir, "networks", names)
	}
}

// unusableError says that a directory has files, and none is usable.
type unusableError struct {
	dir     string
	skipped []Skipped
}

func (e *unusableError) Error() string {
	var b strings.Builder
	b.WriteString("no usable CNI configuration in " + e.dir)
	for i, s := range e.skipped {
		b.WriteString(map[bool]string{true: ": ", false: "; "}[i == 0])
		b.WriteString(s.File + ": " + s.Why)
	}
	return b.String()
}
