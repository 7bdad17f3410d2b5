// Package source tells the agent which pods are declared: in a directory of
// manifests or at a URL. A source always delivers its complete set; what can't be
// read at the moment stays as it last was, so that a fault never removes a pod.
package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// resync is how often the directory is read without having been told of a
// change: for file systems without inotify, and for a directory that was
// replaced.
const resync = 5 * time.Second

// inotifyKey stands for a file in complaints about inotify.
const inotifyKey = "inotify"

// maxFile is the largest manifest that is read, as kubelet has it.
const maxFile = 10 << 20

// Pod is a declared pod and where it was declared: a path or a URL.
type Pod struct {
	*corev1.Pod
	Location string
	// DeletionGrace, if not nil, says that the pod is to be stopped within that grace,
	// and to stay known until it is no longer declared.
	DeletionGrace *time.Duration
}

// Kind of a source. What a pod's source is called begins with it.
type Kind string

// The kinds of sources.
const (
	File Kind = "file:"
	Web  Kind = "url:"
	// API pods have an identity of their own: one that is changed is the same
	// pod as long as its UID is.
	API Kind = "api:"
)

// Set is all that a source declares.
type Set struct {
	Kind Kind
	Pods []Pod
	// Objects are those of all files, for all pods.
	Objects manifest.Objects
	// Unread are files of which it isn't known what they declare: pods that
	// came from them before a restart of huskd must stay.
	Unread []string
}

// Directory is a directory of manifests: every file in it whose name doesn't
// begin with a dot. Directories below it are not read.
type Directory struct {
	Path string
	Node string // name of this node
	Log  *slog.Logger
	// Deliver gets the complete set when it is first known and whenever it changes.
	Deliver func(Set)

	files      map[string]*file
	present    map[string]bool   // the files of the last listing
	lastErrors map[string]string // the last complaint about each file
}

// file is a manifest as it was last understood.
type file struct {
	sum [sha256.Size]byte
	manifest.File
}

// Run watches the directory until ctx ends.
func (d *Directory) Run(ctx context.Context) error {
	d.files, d.lastErrors = map[string]*file{}, map[string]string{}
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("manifests: watch %s: %w", d.Path, err)
	}
	defer watch.Close()
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		// Adding it again is harmless, and finds a directory that was replaced.
		// That there is none is told by the scan.
		if err := watch.Add(d.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.logOnce(inotifyKey, fmt.Errorf("%s is read every %v only, as it can't be watched: %w", d.Path, resync, err))
		}
		if d.scan() {
			d.Deliver(d.set())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case err := <-watch.Errors:
			if err != nil && !errors.Is(err, fsnotify.ErrEventOverflow) {
				d.logOnce(d.Path, err)
			}
		case <-watch.Events:
			drain(watch.Events)
		}
	}
}

// drain takes the events that are there already: one scan serves them all.
func drain(events <-chan fsnotify.Event) {
	for {
		select {
		case <-events:
		default:
			return
		}
	}
}

// scan reads what has changed and says whether the set may be another now.
func (d *Directory) scan() bool {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		d.logOnce(d.Path, fmt.Errorf("the pods from it are kept: %w", err))
		return false
	}
	d.clearError(d.Path)
	present := map[string]bool{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		present[filepath.Join(d.Path, e.Name())] = true
	}
	changed := d.present == nil || !maps.Equal(d.present, present)
	d.present = present
	for path := range present {
		if d.read(path) {
			changed = true
		}
	}
	maps.DeleteFunc(d.files, func(path string, _ *file) bool { return !present[path] })
	for path := range d.lastErrors {
		if path != d.Path && path != inotifyKey && !present[path] {
			delete(d.lastErrors, path)
		}
	}
	return changed
}

// read reads one file and says whether its pods changed. A file that can't be
// read or understood keeps the pods that it last had.
func (d *Directory) read(path string) bool {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false // removed since it was listed: the next scan knows
	}
	if err != nil {
		d.logOnce(path, d.notePodsKept(path, err))
		return false
	}
	sum := sha256.Sum256(data)
	if had := d.files[path]; had != nil && had.sum == sum {
		d.clearError(path)
		return false
	}
	parsed, err := manifest.Parse(data, manifest.Origin{File: path, Node: d.Node, Source: string(File) + path})
	if err != nil {
		d.logOnce(path, d.notePodsKept(path, err))
		return false
	}
	d.clearError(path)
	d.files[path] = &file{sum, parsed}
	return true
}

func (d *Directory) notePodsKept(path string, err error) error {
	if had := d.files[path]; had != nil && len(had.Pods) > 0 {
		return fmt.Errorf("%w (its running pods are kept)", err)
	}
	return err
}

var errNotFile = errors.New("is not a regular file: move it elsewhere, or let its name begin with a dot")

func readFile(path string) ([]byte, error) {
	// Without blocking on a FIFO that somebody put there.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, errNotFile)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: is larger than %d MiB", path, maxFile>>20)
	}
	return data, err
}

// set returns the pods of all files. Of two with the same name the one of the
// file that sorts first counts.
func (d *Directory) set() Set {
	from := map[string]string{}
	set := Set{Kind: File, Objects: manifest.Objects{}}
	for _, path := range slices.Sorted(maps.Keys(d.present)) {
		if d.files[path] == nil {
			set.Unread = append(set.Unread, path)
			continue
		}
		for i := range d.files[path].Pods {
			pod := &d.files[path].Pods[i]
			name := pod.Namespace + "/" + pod.Name
			if first, ok := from[name]; ok {
				d.logOnce(path, fmt.Errorf("pod %s is declared in %s too, which counts: rename one", name, first))
				continue
			}
			from[name] = path
			set.Pods = append(set.Pods, Pod{Pod: pod, Location: path})
		}
		for key, object := range d.files[path].Objects {
			if first, ok := from[key]; ok {
				d.logOnce(path, fmt.Errorf("%s is declared in %s too, which counts: rename one", strings.ToLower(key), first))
				continue
			}
			from[key] = path
			set.Objects[key] = object
		}
	}
	return set
}

// logOnce logs what is wrong with a file, once until it is another thing.
func (d *Directory) logOnce(path string, err error) {
	if d.lastErrors[path] == err.Error() {
		return
	}
	d.lastErrors[path] = err.Error()
	d.Log.Error("manifests: "+strings.ReplaceAll(err.Error(), "\n", "; "), "file", path)
}

func (d *Directory) clearError(path string) { delete(d.lastErrors, path) }
