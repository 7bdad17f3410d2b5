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

	"github.com/huskd/husk/internal/filewatch"
)

const (
	// quietPeriod is how long a directory must be unchanged before it is read, because
	// agents write files in several steps.
	quietPeriod = 100 * time.Millisecond
	// emptyGrace is how long an empty directory keeps its last networks, because agents
	// remove files before they write new ones.
	emptyGrace = 3 * time.Second
	// resyncInterval is how often the directory is read without any change, because
	// plugins may have been installed.
	resyncInterval = 10 * time.Second
)

// State is the result of reading a watched directory. It must not be modified.
type State struct {
	Found
	// Stale is the reason why Found.Networks are those of an earlier reading: the
	// current ones can't be used. It is empty if they are current.
	Stale string
	// Err is set if there is no network although there should be: the directory can't
	// be read, or none of its files is usable.
	Err error
}

// Watch follows a directory of configurations.
type Watch struct {
	dir        string
	usable     func(*libcni.NetworkConfigList) error
	log        *slog.Logger
	state      atomic.Pointer[State]
	emptySince time.Time // when the directory was first seen empty after it had networks
}

// NewWatch reads the directory once. Run follows it.
func NewWatch(dir string, usable func(*libcni.NetworkConfigList) error, log *slog.Logger) *Watch {
	w := &Watch{dir: filepath.Clean(dir), usable: usable, log: log}
	w.state.Store(&State{})
	w.reload()
	return w
}

// State returns the result of the last reading.
func (w *Watch) State() State { return *w.state.Load() }

// Run follows the directory until ctx ends. The directory may be missing, appear, or be
// replaced.
func (w *Watch) Run(ctx context.Context) {
	changes, err := filewatch.New(quietPeriod)
	if err != nil {
		w.log.Warn("cni: can't watch the configuration, so changes are noticed late", "directory", w.dir, "error", err)
	}
	defer changes.Close()
	for ctx.Err() == nil {
		// It watches before it reads, so that no change is missed.
		w.watch(changes)
		w.reload()
		w.watch(changes) // the directories of networks that are new
		pause := resyncInterval
		if !w.emptySince.IsZero() {
			pause = emptyGrace
		}
		changes.Wait(ctx, pause, nil)
	}
}

// watch watches the directory, and the directories with further plugins of its networks. Those may
// be missing.
func (w *Watch) watch(changes *filewatch.Watch) {
	_ = changes.Add(w.dir)
	for _, n := range w.State().Networks {
		_ = changes.Add(filepath.Join(w.dir, n.List.Name))
	}
}

func same(a, b Found) bool {
	return reflect.DeepEqual(a.Networks, b.Networks) && reflect.DeepEqual(a.Skipped, b.Skipped)
}

// reload reads the directory and updates the state.
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
	case empty && len(before.Networks) > 0 && w.justEmptied():
		now.Stale = w.dir + " is empty"
	}
	if now.Stale == "" || !empty {
		w.emptySince = time.Time{}
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
	w.logChange(before, now)
}

// justEmptied reports whether an empty directory has been so for less than emptyGrace.
func (w *Watch) justEmptied() bool {
	if w.emptySince.IsZero() {
		w.emptySince = time.Now()
	}
	return time.Since(w.emptySince) < emptyGrace
}

// logChange logs the state if it has changed.
func (w *Watch) logChange(before, now State) {
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

// unusableError means that a directory has files, but no usable one.
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
