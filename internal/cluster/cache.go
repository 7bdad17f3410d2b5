package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Object is what a list on the server consists of.
type Object interface {
	metav1.Object
	runtime.Object
}

// List is one on the server.
type List struct {
	// Path of the list, and a field selector that may be empty.
	Path, Fields string
	// Item and List are empty objects of their types.
	Item Object
	List runtime.Object
}

func (l List) String() string {
	if l.Fields == "" {
		return l.Path
	}
	return l.Path + "?" + l.Fields
}

// Cache has the objects of a list as the server last had them: while it can't
// be reached, they stay. They are not to be changed.
type Cache[T Object] struct {
	changed, good func()

	mu      sync.Mutex
	objects map[string]T // by namespace/name
	synced  bool
}

// Watch has a mirror follow a list until ctx ends. It calls changed, which must
// not block, after each change and when the first complete list is there.
func Watch[T Object](ctx context.Context, c *Client, list List, changed func()) *Cache[T] {
	what := list.String()
	m := &Cache[T]{objects: map[string]T{}, changed: changed, good: func() { c.LogOnce(what, nil) }}
	request := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector = list.Fields
		return c.rest.Get().AbsPath(list.Path).SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.SchemeGroupVersion)
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into := list.List.DeepCopyObject()
			err := request(o).Timeout(answerTime).Do(ctx).Into(into)
			if read, is := into.(metav1.ListInterface); err == nil && (!is || read.GetResourceVersion() == "") {
				err = errVersionless
			}
			if err != nil {
				c.LogOnce(what, err)
			}
			return into, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(o).Watch(ctx)
			if err != nil && !(apierrors.IsInvalid(err) && o.SendInitialEvents != nil) { // an older server is asked for a list then
				c.LogOnce(what, err)
			}
			return w, err
		},
	}
	reflector := cache.NewReflectorWithOptions(source, list.Item, m, cache.ReflectorOptions{Name: what})
	c.following.Go(func() { reflector.RunWithContext(ctx) })
	return m
}

// errVersionless is what an answer that could be anybody's is taken for: read as
// a list it would be an empty one.
var errVersionless = errors.New("its answer has no resourceVersion, so that it isn't an API server's list")

// Synced says whether there was a complete list.
func (m *Cache[T]) Synced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}

// Get returns the object of that name.
func (m *Cache[T]) Get(namespace, name string) (T, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[namespace+"/"+name]
	return o, ok
}

// All returns all objects, in no order.
func (m *Cache[T]) All() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]T, 0, len(m.objects))
	for _, o := range m.objects {
		out = append(out, o)
	}
	return out
}

// What follows is for the reflector only.

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// Add takes an object in.
func (m *Cache[T]) Add(item any) error {
	o, ok := item.(T)
	if !ok {
		return fmt.Errorf("%T is not what was asked for", item)
	}
	o.SetManagedFields(nil)
	m.mu.Lock()
	m.objects[key(o)] = o
	m.mu.Unlock()
	m.good()
	m.changed()
	return nil
}

// Update is Add.
func (m *Cache[T]) Update(item any) error { return m.Add(item) }

// Delete lets go of an object.
func (m *Cache[T]) Delete(item any) error {
	if gone, ok := item.(cache.DeletedFinalStateUnknown); ok {
		item = gone.Obj
	}
	o, ok := item.(T)
	if !ok {
		return fmt.Errorf("%T is not what was asked for", item)
	}
	m.mu.Lock()
	delete(m.objects, key(o))
	m.mu.Unlock()
	m.good()
	m.changed()
	return nil
}

// Replace takes a complete list.
func (m *Cache[T]) Replace(items []any, _ string) error {
	objects := make(map[string]T, len(items))
	for _, item := range items {
		o, ok := item.(T)
		if !ok {
			return fmt.Errorf("%T is not what was asked for", item)
		}
		o.SetManagedFields(nil)
		objects[key(o)] = o
	}
	m.mu.Lock()
	m.objects, m.synced = objects, true
	m.mu.Unlock()
	m.good()
	m.changed()
	return nil
}

// Bookmark is how a server says that nothing has changed.
func (m *Cache[T]) Bookmark(string) error {
	m.good()
	return nil
}

// Resync does nothing.
func (m *Cache[T]) Resync() error { return nil }
