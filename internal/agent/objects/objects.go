// Package objects owns the objects of manifests that pods refer to or that apply to pods: config
// maps, secrets, claims, volumes, network policies and namespaces. It keeps those of husk run in
// the journal until they are removed. Other sources declare theirs anew each time. Together they
// are one set, in which a pod of any source finds what it refers to.
package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
)

// Config is what a Store works with.
type Config struct {
	Journal *journal.Journal
	// Policies says that network policies are enforced. Otherwise manifests may have none.
	Policies bool
	// Deliver is called with each new set of a source, that of husk run included, and with the
	// objects of all sources. Once it returns, they are in effect.
	Deliver func(set source.Set, all manifest.Objects)
}

// Store owns objects. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	records journal.Table[record]

	// delivering is held while a change is delivered, so that none overtakes another. Invariant: it
	// is locked before mu.
	delivering sync.Mutex

	// Invariant: mu guards what follows.
	mu   sync.Mutex
	kept map[ref]*entry
	// sources has what other sources declare, by their kind.
	sources map[source.Kind]source.Set
}

// ref names an object.
type ref struct{ kind, namespace, name string }

func refOf(doc manifest.Document) ref { return ref{doc.Kind, doc.Namespace, doc.Name} }

func (r ref) String() string { return strings.ToLower(r.kind) + "/" + path(r.namespace, r.name) }

// key is the key of the record in the journal.
func (r ref) key() string { return r.kind + "/" + path(r.namespace, r.name) }

func path(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// record is what the journal keeps of an object. It keeps the document, so that a later huskd reads
// it as it was written.
type record struct {
	Document []byte    `json:"document"`
	File     string    `json:"file"` // where it came from, for people
	Created  time.Time `json:"created"`
}

type entry struct {
	record
	content manifest.File // has only the object
}

// New returns a store without objects. Load adds the recorded ones.
func New(cfg Config) *Store {
	return &Store{cfg: cfg, records: journal.NewTable[record](cfg.Journal, "object"), kept: map[ref]*entry{}, sources: map[source.Kind]source.Set{}}
}

// Policies reports whether manifests may have network policies.
func (s *Store) Policies() bool { return s.cfg.Policies }

// Load adopts the recorded objects. It sets unreadable records aside and returns their errors. It
// delivers nothing.
func (s *Store) Load() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records.Load(func(key string, rec record) error {
		e, doc, err := read(rec)
		if err == nil && refOf(doc).key() != key {
			err = errors.New("not the record of this object")
		}
		if err != nil {
			return err
		}
		s.kept[refOf(doc)] = e
		return nil
	})
}

// read parses the document of a record.
func read(rec record) (*entry, manifest.Document, error) {
	content, err := manifest.Parse(rec.Document, manifest.Origin{File: rec.File, Source: string(source.Run), Policies: true})
	if err == nil && len(content.Documents) != 1 {
		err = errors.New("not the record of an object")
	}
	if err != nil {
		return nil, manifest.Document{}, err
	}
	return &entry{rec, content}, content.Documents[0], nil
}

// Keep keeps the objects of a file of husk run, in place of those of the same names, and returns
// once they are in effect and on disk. It reports for each whether it was kept unchanged. It
// refuses all if one is declared by another source with other content.
func (s *Store) Keep(ctx context.Context, docs []manifest.Document, file string) (unchanged []bool, err error) {
	if len(docs) == 0 {
		return nil, nil
	}
	s.delivering.Lock()
	defer s.delivering.Unlock()
	unchanged, err = s.keep(docs, file)
	if !slices.Contains(unchanged, false) {
		return unchanged, err
	}
	s.deliver(s.own())
	if err != nil {
		return unchanged, err
	}
	if err := s.cfg.Journal.Sync(ctx); err != nil {
		return unchanged, fmt.Errorf("the objects of %s are kept, but would be lost in a power failure: %w", file, err)
	}
	return unchanged, nil
}

func (s *Store) keep(docs []manifest.Document, file string) (unchanged []bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := make([]*entry, len(docs))
	for i, doc := range docs {
		if entries[i], _, err = read(record{doc.JSON, file, time.Now().Round(0)}); err != nil {
			return nil, err
		}
		if err := s.free(refOf(doc), entries[i].content); err != nil {
			return nil, err
		}
	}
	for i, doc := range docs {
		old := s.kept[refOf(doc)]
		if old != nil && slices.Equal(old.Document, doc.JSON) {
			unchanged = append(unchanged, true)
			continue
		}
		if old != nil {
			entries[i].Created = old.Created
		}
		if err := s.records.Put(refOf(doc).key(), entries[i].record); err != nil {
			return unchanged, fmt.Errorf("%s: %w", refOf(doc), err)
		}
		if err := s.records.DeleteAside(refOf(doc).key()); err != nil {
			return unchanged, fmt.Errorf("%s: %w", refOf(doc), err)
		}
		s.kept[refOf(doc)] = entries[i]
		unchanged = append(unchanged, false)
	}
	return unchanged, nil
}

// places says where the sources declare.
var places = map[source.Kind]string{source.File: "in the manifests directory", source.Web: "at the URL of manifests"}

// free reports whether no other source declares an object of this name with other content. The
// caller holds mu.
func (s *Store) free(r ref, content manifest.File) error {
	own := setOf(source.Run, content)
	for kind, set := range s.sources {
		if differs(own.Objects, set.Objects) || differs(own.Policies, set.Policies) || differs(own.Namespaces, set.Namespaces) {
			return errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("%s is declared %s with other content: rename one", r, places[kind]))
		}
	}
	return nil
}

// differs reports whether both have a value of the same name, and the values differ.
func differs[V any](one, other map[string]V) bool {
	for name, value := range one {
		if has, ok := other[name]; ok && !reflect.DeepEqual(value, has) {
			return true
		}
	}
	return false
}

func setOf(kind source.Kind, files ...manifest.File) source.Set {
	set := source.NewSet(kind)
	for i := range files {
		set.Add(&files[i])
	}
	return set
}

// Start delivers the objects that Load has adopted.
func (s *Store) Start() {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	s.deliver(s.own())
}

// own returns the objects of husk run.
func (s *Store) own() source.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := make([]manifest.File, 0, len(s.kept))
	for _, r := range s.refs() {
		files = append(files, s.kept[r].content)
	}
	set := setOf(source.Run, files...)
	set.Doubts = s.doubts()
	return set
}

// doubts says why policies or namespaces may be missing. The caller holds mu.
func (s *Store) doubts() (out []string) {
	for _, file := range s.cfg.Journal.Damaged() {
		out = append(out, file+" has what couldn't be read of the journal")
	}
	for _, key := range s.records.Aside() {
		switch kind, name, _ := strings.Cut(key, "/"); kind {
		case manifest.KindNetworkPolicy, manifest.KindClusterNetworkPolicy, manifest.KindNamespace:
			out = append(out, "the record of "+strings.ToLower(kind)+"/"+name+" can't be read")
		}
	}
	return out
}

// deliver delivers a set. The caller holds delivering.
func (s *Store) deliver(set source.Set) { s.cfg.Deliver(set, s.All()) }

// refs returns the names of the kept objects, sorted. The caller holds mu.
func (s *Store) refs() []ref {
	return slices.SortedFunc(maps.Keys(s.kept), func(x, y ref) int {
		return cmp.Or(cmp.Compare(x.kind, y.kind), cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.name, y.name))
	})
}

// Declare takes and delivers what another source declares.
func (s *Store) Declare(set source.Set) {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	s.mu.Lock()
	s.sources[set.Kind] = set
	s.mu.Unlock()
	s.deliver(set)
}

// All returns the objects of all sources that pods may refer to. Of several with one name, that of
// the manifests directory counts, then that at the URL.
func (s *Store) All() manifest.Objects {
	out := manifest.Objects{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.kept {
		maps.Copy(out, e.content.Objects)
	}
	for _, kind := range []source.Kind{source.Web, source.File} {
		maps.Copy(out, s.sources[kind].Objects)
	}
	return out
}

// Object is a kept object.
type Object struct {
	Kind, Namespace, Name string
	File                  string // of husk run
	Created               time.Time
}

// List returns the objects that husk run has brought, sorted.
func (s *Store) List() []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Object
	for _, r := range s.refs() {
		out = append(out, Object{r.kind, r.namespace, r.name, s.kept[r].File, s.kept[r].Created})
	}
	return out
}

// Remove removes objects of husk run, and returns once that is in effect and on disk. Pods keep
// their copies. The error is errdefs.ErrNotFound if there is none of them.
func (s *Store) Remove(ctx context.Context, objects ...Object) error {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	removed := false
	var failures []error
	for _, o := range objects {
		err := s.remove(ref{o.Kind, o.Namespace, o.Name})
		removed = removed || err == nil
		failures = append(failures, err)
	}
	if !removed {
		return errors.Join(failures...)
	}
	s.deliver(s.own())
	for _, err := range failures {
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := s.cfg.Journal.Sync(ctx); err != nil {
		return fmt.Errorf("objects are removed, but would exist again after a power failure: %w", err)
	}
	return nil
}

func (s *Store) remove(r ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	unread := slices.Contains(s.records.Aside(), r.key())
	if s.kept[r] == nil && !unread {
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("no %s: husk objects lists what husk run has brought", r))
	}
	if err := errors.Join(s.records.Delete(r.key()), s.records.DeleteAside(r.key())); err != nil {
		return fmt.Errorf("%s: %w", r, err)
	}
	delete(s.kept, r)
	return nil
}

// kinds are the kinds in the form in which users write them, without short ones.
var kinds = map[string]string{
	"cm": manifest.KindConfigMap, "configmap": manifest.KindConfigMap, "secret": manifest.KindSecret,
	"pv": manifest.KindVolume, "persistentvolume": manifest.KindVolume,
	"pvc": manifest.KindClaim, "persistentvolumeclaim": manifest.KindClaim,
	"netpol": manifest.KindNetworkPolicy, "networkpolicy": manifest.KindNetworkPolicy,
	"clusternetworkpolicy": manifest.KindClusterNetworkPolicy, "ns": manifest.KindNamespace, "namespace": manifest.KindNamespace,
}

// ParseName returns the object that a user has written as KIND/NAME or KIND/NAMESPACE/NAME, and
// whether it is one.
func ParseName(text string) (o Object, ok bool) {
	kind, name, ok := strings.Cut(text, "/")
	if o.Kind = kinds[strings.ToLower(kind)]; !ok || o.Kind == "" {
		return o, false
	}
	o.Namespace, o.Name = manifest.DefaultNamespace, name
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		o.Namespace, o.Name = namespace, rest
	}
	if slices.Contains([]string{manifest.KindVolume, manifest.KindClusterNetworkPolicy, manifest.KindNamespace}, o.Kind) {
		o.Namespace = ""
	}
	return o, o.Name != "" && !strings.Contains(o.Name, "/")
}
