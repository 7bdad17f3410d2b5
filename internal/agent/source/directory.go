// Package source delivers the declared pods to the agent, from a directory of manifests or a URL. A
// source always delivers its complete set. What can't be read stays as it was, so that an error
// never removes a pod.
package source

import (
	"bytes"
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
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/filewatch"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/workload"
)

// resync is the interval at which the directory is read even without an inotify event. It is needed
// on file systems without inotify.
const resync = 5 * time.Second

// inotifyKey is the key in lastErrors for errors of inotify.
const inotifyKey = "inotify"

// maxFile is the maximum size of a manifest. It is kubelet's.
const maxFile = 10 << 20

// Pod is a declared pod.
type Pod struct {
	*corev1.Pod
	Location string // path or URL of its manifest
	// DeletionGrace is set if the pod is being deleted. The pod is stopped within that time, and
	// its record stays until it is no longer declared.
	DeletionGrace *time.Duration
}

// Workload is a declared workload.
type Workload struct {
	*workload.Workload
	Location string // path or URL of its manifest
}

// Service is a declared Service.
type Service struct {
	*corev1.Service
	Location string // path or URL of its manifest
}

// Slice is a part of the endpoints of a Service that has no selector.
type Slice struct {
	*service.Slice
	Location string // path or URL of its manifest
}

// Kind is the kind of a source. The names of sources begin with it.
type Kind string

// The kinds of sources.
const (
	File Kind = "file:"
	Web  Kind = "url:"
	// API is an API server. Its pods keep their identity across changes, by their UIDs.
	API Kind = "api:"
	// Run is husk run. It declares no pods: these are started one by one.
	Run Kind = "run"
)

// Set is everything that a source declares.
type Set struct {
	Kind Kind
	Pods []Pod
	// Workloads are those of all files.
	Workloads []Workload
	// Services and Slices are those of all files.
	Services []Service
	Slices   []Slice
	// Objects are the config maps and secrets of all files, for all pods.
	Objects manifest.Objects
	// Policies are those of all files, by their names.
	Policies map[string]*policy.Policy
	// Namespaces are the labels of the namespaces of all files, by name.
	Namespaces map[string]map[string]string
	// UnreadPolicies are those of Unread that may have policies.
	UnreadPolicies []string
	// Doubts say why policies and namespaces may be missing, or older ones than the last.
	Doubts []string
	// Unread are the locations whose content isn't known. Pods from them must stay.
	Unread []string
}

// NewSet returns a set without content.
func NewSet(kind Kind) Set {
	return Set{Kind: kind, Objects: manifest.Objects{}, Policies: map[string]*policy.Policy{}, Namespaces: map[string]map[string]string{}}
}

// Add adds what a file has beside pods and workloads, in place of what has the same name.
func (s *Set) Add(f *manifest.File) {
	maps.Copy(s.Objects, f.Objects)
	maps.Copy(s.Namespaces, f.Namespaces)
	for i := range f.Policies {
		s.Policies[f.Policies[i].Name] = &f.Policies[i]
	}
}

// extensions are those of manifests in a directory.
var extensions = []string{".yaml", ".yml", ".json"}

// Directory is a directory of manifests. It reads the files with one of the extensions whose names
// don't begin with a dot, but no subdirectories. It ignores others, such as an editor's.
type Directory struct {
	Path string
	Node string // name of this node
	Log  *slog.Logger
	// Policies accepts network policies. Set it if they are enforced.
	Policies bool
	// Services accepts Services. Set it if they are served.
	Services bool
	// Refused is called when a file or a part of it is refused, or the directory can't be read:
	// once until the reason changes. It may be nil.
	Refused func(reason string)
	// Note is called when a file is read that has an object without effect.
	Note func(path string, unused manifest.Unused)
	// Deliver is called with the complete set once it is known and after each change.
	Deliver func(Set)

	files      map[string]*file
	present    map[string]bool   // the files of the last listing
	hidden     map[string]bool   // the files that can't be read and may have policies
	lastErrors map[string]string // the last error logged for each file
	faults     map[string]string // why the directory or a file can't be read
	conflicts  []string          // what the last set lacks, because another file declares it
	report     atomic.Pointer[Report]
}

// Report is what someone should know of a directory of manifests.
type Report struct {
	// Problems say why a file, or a part of it, is refused.
	Problems []string
	// Ignored are the names of files that aren't read because of their extension.
	Ignored []string
}

// Report returns the last report. It may be called while Run runs. That of a nil Directory is
// empty.
func (d *Directory) Report() Report {
	if d == nil {
		return Report{}
	}
	if r := d.report.Load(); r != nil {
		return *r
	}
	return Report{}
}

// file is the last valid version of a manifest.
type file struct {
	sum [sha256.Size]byte
	manifest.File
}

// Run watches the directory until ctx ends.
func (d *Directory) Run(ctx context.Context) error {
	d.files, d.lastErrors = map[string]*file{}, map[string]string{}
	d.hidden, d.faults = map[string]bool{}, map[string]string{}
	watch, err := filewatch.New(0)
	if err != nil {
		return fmt.Errorf("manifests: watch %s: %w", d.Path, err)
	}
	defer watch.Close()
	for ctx.Err() == nil {
		// The scan reports a missing directory.
		if err := watch.Add(d.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.logOnce(inotifyKey, fmt.Errorf("%s can't be watched and is only read every %v: %w", d.Path, resync, err))
		}
		changed, ignored := d.scan()
		if changed {
			d.Deliver(d.set())
		}
		var problems []string
		for _, path := range slices.Sorted(maps.Keys(d.faults)) {
			problems = append(problems, d.faults[path])
		}
		d.report.Store(&Report{Problems: append(problems, d.conflicts...), Ignored: ignored})
		watch.Wait(ctx, resync, nil)
	}
	return nil
}

// scan reads changed files and reports whether the set may have changed. It returns the names that
// it ignores.
func (d *Directory) scan() (changed bool, ignored []string) {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		d.refuse(d.Path, fmt.Errorf("the pods from it are kept: %w", err))
		return false, d.Report().Ignored
	}
	d.accept(d.Path)
	present := map[string]bool{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if !slices.Contains(extensions, filepath.Ext(e.Name())) {
			ignored = append(ignored, e.Name())
			continue
		}
		present[filepath.Join(d.Path, e.Name())] = true
	}
	changed = d.present == nil || !maps.Equal(d.present, present)
	d.present = present
	for path := range present {
		if d.read(path) {
			changed = true
		}
	}
	maps.DeleteFunc(d.files, func(path string, _ *file) bool { return !present[path] })
	maps.DeleteFunc(d.hidden, func(path string, _ bool) bool { return !present[path] })
	for path := range d.lastErrors {
		if path != d.Path && path != inotifyKey && !present[path] {
			delete(d.lastErrors, path)
		}
	}
	maps.DeleteFunc(d.faults, func(path string, _ string) bool { return path != d.Path && !present[path] })
	return changed, ignored
}

// read reads a file and reports whether its content changed. If the file is unreadable or invalid,
// its last valid version stays in effect.
func (d *Directory) read(path string) bool {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false // removed after it was listed: the next scan notices
	}
	if err != nil {
		d.refuse(path, d.notePodsKept(path, err))
		return d.hide(path, !errors.Is(err, errNotFile))
	}
	sum := sha256.Sum256(data)
	if had := d.files[path]; had != nil && had.sum == sum {
		d.accept(path)
		return false
	}
	parsed, err := manifest.Parse(data, manifest.Origin{File: path, Node: d.Node, Source: string(File) + path, Policies: d.Policies, Services: d.Services})
	if err != nil {
		d.refuse(path, d.notePodsKept(path, err))
		return d.hide(path, bytes.Contains(data, []byte(manifest.KindNetworkPolicy)) || bytes.Contains(data, []byte("Namespace")))
	}
	d.accept(path)
	d.files[path] = &file{sum, parsed}
	for _, unused := range parsed.Unused {
		d.Note(path, unused)
	}
	return true
}

// hide notes whether an invalid file may have policies, and reports whether that has changed.
func (d *Directory) hide(path string, hidden bool) bool {
	changed := d.hidden[path] != hidden
	d.hidden[path] = hidden
	return changed
}

func (d *Directory) notePodsKept(path string, err error) error {
	if had := d.files[path]; had != nil && len(had.Pods) > 0 {
		return fmt.Errorf("%w (its running pods are kept)", err)
	}
	return err
}

var errNotFile = errors.New("is not a regular file: move it elsewhere, or take away its extension")

func readFile(path string) ([]byte, error) {
	// Opening a FIFO would block.
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

// set returns the pods of all files. If two files declare the same pod, the one that sorts first
// wins.
func (d *Directory) set() Set {
	d.conflicts = nil
	from := map[string]string{}
	set := NewSet(File)
	for _, path := range slices.Sorted(maps.Keys(d.present)) {
		if d.files[path] == nil {
			set.Unread = append(set.Unread, path)
			if d.hidden[path] {
				set.UnreadPolicies = append(set.UnreadPolicies, path)
			}
			continue
		}
		for i := range d.files[path].Pods {
			pod := &d.files[path].Pods[i]
			name := pod.Namespace + "/" + pod.Name
			if first, ok := from[name]; ok {
				d.conflict(path, fmt.Errorf("pod %s is already declared in %s: rename one", name, first))
				continue
			}
			from[name] = path
			set.Pods = append(set.Pods, Pod{Pod: pod, Location: path})
		}
		for _, w := range d.files[path].File.Workloads {
			if first, ok := from[w.String()]; ok {
				d.conflict(path, fmt.Errorf("%s is already declared in %s: rename one", w.Ref, first))
				continue
			}
			from[w.String()] = path
			set.Workloads = append(set.Workloads, Workload{w, path})
		}
		d.addServices(&set, path, from)
		for key, object := range d.files[path].Objects {
			if first, ok := from[key]; ok {
				d.conflict(path, fmt.Errorf("%s is already declared in %s: rename one", strings.ToLower(key), first))
				continue
			}
			from[key] = path
			set.Objects[key] = object
		}
		for name, labels := range d.files[path].Namespaces {
			if first, ok := from["namespace "+name]; ok {
				d.conflict(path, fmt.Errorf("namespace %s is already declared in %s: remove one", name, first))
				continue
			}
			from["namespace "+name] = path
			set.Namespaces[name] = labels
		}
		for i := range d.files[path].File.Policies {
			p := &d.files[path].File.Policies[i]
			if first, ok := from[p.Name]; ok {
				d.conflict(path, fmt.Errorf("%s is already declared in %s: rename one", p.Name, first))
				continue
			}
			from[p.Name] = path
			set.Policies[p.Name] = p
		}
	}
	return set
}

// addServices adds the Services and endpoints of a file. from has what other files declare.
func (d *Directory) addServices(set *Set, path string, from map[string]string) {
	free := func(name string) bool {
		if first, ok := from[name]; ok {
			d.conflict(path, fmt.Errorf("%s is already declared in %s: rename one", name, first))
			return false
		}
		from[name] = path
		return true
	}
	for _, s := range d.files[path].File.Services {
		if free("service " + s.Namespace + "/" + s.Name) {
			set.Services = append(set.Services, Service{s, path})
		}
	}
	for _, s := range d.files[path].Slices {
		if free("endpoint slice " + s.Key()) {
			set.Slices = append(set.Slices, Slice{s, path})
		}
	}
}

// refuse notes why the directory or a file can't be read.
func (d *Directory) refuse(path string, err error) {
	d.faults[path] = oneLine(err)
	if d.logOnce(path, err) && d.Refused != nil {
		d.Refused(oneLine(err))
	}
}

// accept notes that the directory or a file could be read.
func (d *Directory) accept(path string) {
	delete(d.faults, path)
	delete(d.lastErrors, path)
}

// conflict notes why a part of a file isn't in the set.
func (d *Directory) conflict(path string, err error) {
	text := path + ": " + oneLine(err)
	d.conflicts = append(d.conflicts, text)
	if d.logOnce(path, err) && d.Refused != nil {
		d.Refused(text)
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// logOnce logs an error of a file, unless it is the same as the file's last one. It reports whether
// it has.
func (d *Directory) logOnce(path string, err error) bool {
	if d.lastErrors[path] == err.Error() {
		return false
	}
	d.lastErrors[path] = err.Error()
	d.Log.Error("manifests: "+oneLine(err), "file", path)
	return true
}
