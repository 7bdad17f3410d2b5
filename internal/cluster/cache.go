package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/huskd/husk/internal/backoff"
)

// Object is an object in a list on the server.
type Object interface {
	metav1.Object
	runtime.Object
}

// List is a list of objects on the server.
type List struct {
	// Path is the list's path. Fields is a field selector, or empty.
	Path, Fields string
	// Item and List are empty objects of the types of the items and of the list.
	Item Object
	List runtime.Object
	// Metadata says that the server sends the metadata only. Item and List are those of package
	// metav1 then.
	Metadata bool
}

func (l List) String() string {
	if l.Fields == "" {
		return l.Path
	}
	return l.Path + "?" + l.Fields
}

// Cache holds what its owner needs of the objects of a list, in their last known state, also while
// the server can't be reached. Callers must not modify the values. It implements the reflector's
// store.
type Cache[V any] struct {
	project   func(item any) (entry[V], error)
	equal     func(a, b V) bool   // nil if all values differ
	changed   func()              // called after each change
	differs   func(Difference[V]) // like changed, with what has changed; nil if unused
	succeeded func()              // called after each answer of the server

	mu      sync.Mutex
	objects map[string]V // by namespace/name
	synced  bool
	err     error // of the last request
}

// entry is an object of which only the value is left.
type entry[V any] struct {
	key     string // namespace/name
	value   V
	leftOut bool // as if there were no such object
}

// Difference is what has changed in a list since the last one, by namespace/name.
type Difference[V any] struct {
	Set  map[string]V // new or with another value
	Gone []string
}

// firstRetry is the first wait before a list or watch that the server has refused is repeated. A
// request that can't reach the server waits in outage instead. The first wait is short because the
// server's Node authorizer denies the secrets of a new pod until it has learned of the pod, about
// when the node does.
const firstRetry = 50 * time.Millisecond

// Watch keeps a cache of a list up to date until ctx ends. It calls changed, which must not block,
// after each change and once the first complete list has arrived.
func Watch[T Object](ctx context.Context, client *Client, list List, changed func()) *Cache[T] {
	return Project(ctx, client, list, func(o T) T {
		o.SetManagedFields(nil)
		return o
	}, changed)
}

// Project is like Watch, and keeps only the value that keep returns for each object. If the values
// have a method Equal, changed isn't called for an object whose value is equal to the last one.
func Project[T Object, V any](ctx context.Context, client *Client, list List, keep func(T) V, changed func()) *Cache[V] {
	c := &Cache[V]{changed: changed}
	if _, ok := any(*new(V)).(interface{ Equal(other V) bool }); ok {
		c.equal = func(a, b V) bool { return any(a).(interface{ Equal(other V) bool }).Equal(b) }
	}
	run(ctx, client, list, c, func(o T) (V, bool) { return keep(o), true })
	return c
}

// Follower is the user of a list that it follows by what has changed.
type Follower[T Object, V any] struct {
	// Keep returns what is kept of an object, or false if the cache leaves it out.
	Keep func(T) (V, bool)
	// Equal decides what is no change. The last value stays.
	Equal func(a, b V) bool
	// Changed is called for the first complete list, and then for each change. It must not block.
	Changed func(Difference[V])
}

// Follow is like Project, and tells what has changed.
func Follow[T Object, V any](ctx context.Context, client *Client, list List, f Follower[T, V]) *Cache[V] {
	c := &Cache[V]{equal: f.Equal, differs: f.Changed, changed: func() {}}
	run(ctx, client, list, c, f.Keep)
	return c
}

// run keeps the cache up to date until ctx ends.
func run[T Object, V any](ctx context.Context, client *Client, list List, c *Cache[V], keep func(T) (V, bool)) {
	subject := list.String()
	c.objects = map[string]V{}
	c.project = func(item any) (entry[V], error) {
		o, ok := item.(T)
		if !ok {
			return entry[V]{}, fmt.Errorf("unexpected object of type %T", item)
		}
		v, ok := keep(o)
		return entry[V]{o.GetNamespace() + "/" + o.GetName(), v, !ok}, nil
	}
	answered := func(err error) {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		client.LogOnce(subject, err)
	}
	c.succeeded = func() { answered(nil) }
	request := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector = list.Fields
		r := client.rest.Get().AbsPath(list.Path).SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.SchemeGroupVersion)
		if list.Metadata {
			kind := "PartialObjectMetadataList"
			if o.Watch {
				kind = "PartialObjectMetadata"
			}
			r.SetHeader("Accept", runtime.ContentTypeJSON+";as="+kind+";g=meta.k8s.io;v=v1")
		}
		return r
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (into runtime.Object, err error) {
			err = client.outage.retry(ctx, func() error {
				into = list.List.DeepCopyObject()
				err := request(o).Timeout(answerTime).Do(ctx).Into(into)
				if read, is := into.(metav1.ListInterface); err == nil && (!is || read.GetResourceVersion() == "") {
					err = errVersionless
				}
				if err != nil {
					answered(err)
				}
				return err
			})
			return into, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			o.Watch = true
			err = client.outage.retry(ctx, func() (err error) {
				w, err = request(o).Watch(ctx)
				if !(apierrors.IsInvalid(err) && o.SendInitialEvents != nil) { // the reflector falls back to a list for older servers
					answered(err)
				}
				return err
			})
			return w, err
		},
	}
	refused := refusedWaits()
	reflector := cache.NewReflectorWithOptions(source, list.Item, c, cache.ReflectorOptions{Name: subject, Backoff: &refused})
	client.watches.Go(func() { reflector.RunWithContext(ctx) })
}

// refusedWaits returns the waits before a list or watch that the server has refused is repeated.
func refusedWaits() wait.Backoff {
	// Jitter doubles them at most.
	return wait.Backoff{Duration: firstRetry, Cap: backoff.Most / 2, Factor: 2, Jitter: 1, Steps: 20}
}

// errVersionless rejects the answer of another kind of server, which would decode as an empty list.
var errVersionless = errors.New("the answer has no resourceVersion, so it isn't an API server's list")

// Synced reports whether a complete list has arrived.
func (c *Cache[V]) Synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced
}

// Err returns why the server's last answer about the list was an error, or nil.
func (c *Cache[V]) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Get returns what is kept of the object of that name.
func (c *Cache[V]) Get(namespace, name string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.objects[namespace+"/"+name]
	return v, ok
}

// All returns what is kept of all objects, in no particular order.
func (c *Cache[V]) All() []V {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.objects))
}

// Keys returns the keys of all objects, namespace/name, in no particular order.
func (c *Cache[V]) Keys() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.objects))
}

// Transformer makes the reflector keep only the entries of a list that arrives as a stream. It and
// the methods below are for the reflector only.
func (c *Cache[V]) Transformer() cache.TransformFunc {
	return func(item any) (any, error) { return c.entry(item) }
}

// entry returns what is kept of an item, which is an object or already an entry.
func (c *Cache[V]) entry(item any) (entry[V], error) {
	if e, ok := item.(entry[V]); ok {
		return e, nil
	}
	return c.project(item)
}

// Add adds or replaces an object.
func (c *Cache[V]) Add(item any) error {
	e, err := c.entry(item)
	if err != nil {
		return err
	}
	if e.leftOut {
		c.remove(e.key)
		return nil
	}
	c.mu.Lock()
	last, had := c.objects[e.key]
	same := had && c.equal != nil && c.equal(e.value, last)
	if !same || c.differs == nil {
		c.objects[e.key] = e.value
	}
	c.mu.Unlock()
	c.succeeded()
	if !same {
		c.report(Difference[V]{Set: map[string]V{e.key: e.value}})
	}
	return nil
}

func (c *Cache[V]) report(d Difference[V]) {
	c.changed()
	if c.differs != nil {
		c.differs(d)
	}
}

// Update replaces an object.
func (c *Cache[V]) Update(item any) error { return c.Add(item) }

// Delete removes an object.
func (c *Cache[V]) Delete(item any) error {
	if gone, ok := item.(cache.DeletedFinalStateUnknown); ok {
		item = gone.Obj
	}
	e, err := c.entry(item)
	if err != nil {
		return err
	}
	c.remove(e.key)
	return nil
}

func (c *Cache[V]) remove(key string) {
	c.mu.Lock()
	_, had := c.objects[key]
	delete(c.objects, key)
	c.mu.Unlock()
	c.succeeded()
	if had {
		c.report(Difference[V]{Gone: []string{key}})
	}
}

// Replace replaces all objects by those of a complete list.
func (c *Cache[V]) Replace(items []any, _ string) error {
	objects := make(map[string]V, len(items))
	for _, item := range items {
		e, err := c.entry(item)
		if err != nil {
			return err
		}
		if !e.leftOut {
			objects[e.key] = e.value
		}
	}
	var d Difference[V]
	c.mu.Lock()
	if c.differs != nil {
		d = c.difference(objects)
	}
	same := c.differs != nil && c.synced && len(d.Set)+len(d.Gone) == 0
	c.objects, c.synced = objects, true
	c.mu.Unlock()
	c.succeeded()
	if !same {
		c.report(d)
	}
	return nil
}

// difference compares the objects with new ones, and makes those that are equal the same values.
func (c *Cache[V]) difference(objects map[string]V) Difference[V] {
	d := Difference[V]{Set: map[string]V{}}
	for key, value := range objects {
		if last, had := c.objects[key]; had && c.equal(value, last) {
			objects[key] = last
		} else {
			d.Set[key] = value
		}
	}
	for key := range c.objects {
		if _, ok := objects[key]; !ok {
			d.Gone = append(d.Gone, key)
		}
	}
	return d
}

// Bookmark notes that the server has answered and nothing has changed.
func (c *Cache[V]) Bookmark(string) error {
	c.succeeded()
	return nil
}

// Resync does nothing.
func (c *Cache[V]) Resync() error { return nil }
