package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
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
}

func (l List) String() string {
	if l.Fields == "" {
		return l.Path
	}
	return l.Path + "?" + l.Fields
}

// Cache holds the objects of a list in their last known state, also while the server can't be
// reached. Callers must not modify the objects. It implements the reflector's store.
type Cache[T Object] struct {
	changed   func() // called after each change
	succeeded func() // called after each answer of the server

	mu      sync.Mutex
	objects map[string]T // by namespace/name
	synced  bool
}

// The waits before a failed list or watch is repeated. The first is short because the server's Node
// authorizer denies the secrets of a new pod until it has learned of the pod, about when the node
// does.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Watch keeps a cache of a list up to date until ctx ends. It calls changed, which must not block,
// after each change and once the first complete list has arrived.
func Watch[T Object](ctx context.Context, client *Client, list List, changed func()) *Cache[T] {
	subject := list.String()
	c := &Cache[T]{objects: map[string]T{}, changed: changed, succeeded: func() { client.LogOnce(subject, nil) }}
	request := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector = list.Fields
		return client.rest.Get().AbsPath(list.Path).SpecificallyVersionedParams(&o, metav1.ParameterCodec, metav1.SchemeGroupVersion)
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into := list.List.DeepCopyObject()
			err := request(o).Timeout(answerTime).Do(ctx).Into(into)
			if read, is := into.(metav1.ListInterface); err == nil && (!is || read.GetResourceVersion() == "") {
				err = errVersionless
			}
			if err != nil {
				client.LogOnce(subject, err)
			}
			return into, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(o).Watch(ctx)
			if err != nil && !(apierrors.IsInvalid(err) && o.SendInitialEvents != nil) { // the reflector falls back to a list for older servers
				client.LogOnce(subject, err)
			}
			return w, err
		},
	}
	reflector := cache.NewReflectorWithOptions(source, list.Item, c, cache.ReflectorOptions{Name: subject, Backoff: &wait.Backoff{
		Duration: firstRetry, Cap: lastRetry, Factor: 2, Jitter: 1, Steps: 20,
	}})
	client.watches.Go(func() { reflector.RunWithContext(ctx) })
	return c
}

// errVersionless rejects the answer of another kind of server, which would decode as an empty list.
var errVersionless = errors.New("the answer has no resourceVersion, so it isn't an API server's list")

// Synced reports whether a complete list has arrived.
func (c *Cache[T]) Synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced
}

// Get returns the object of that name.
func (c *Cache[T]) Get(namespace, name string) (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.objects[namespace+"/"+name]
	return o, ok
}

// All returns all objects, in no particular order.
func (c *Cache[T]) All() []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]T, 0, len(c.objects))
	for _, o := range c.objects {
		out = append(out, o)
	}
	return out
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// Add adds or replaces an object. It and the methods below are for the reflector only.
func (c *Cache[T]) Add(item any) error {
	o, ok := item.(T)
	if !ok {
		return fmt.Errorf("unexpected object of type %T", item)
	}
	o.SetManagedFields(nil)
	c.mu.Lock()
	c.objects[key(o)] = o
	c.mu.Unlock()
	c.succeeded()
	c.changed()
	return nil
}

// Update replaces an object.
func (c *Cache[T]) Update(item any) error { return c.Add(item) }

// Delete removes an object.
func (c *Cache[T]) Delete(item any) error {
	if gone, ok := item.(cache.DeletedFinalStateUnknown); ok {
		item = gone.Obj
	}
	o, ok := item.(T)
	if !ok {
		return fmt.Errorf("unexpected object of type %T", item)
	}
	c.mu.Lock()
	delete(c.objects, key(o))
	c.mu.Unlock()
	c.succeeded()
	c.changed()
	return nil
}

// Replace replaces all objects by those of a complete list.
func (c *Cache[T]) Replace(items []any, _ string) error {
	objects := make(map[string]T, len(items))
	for _, item := range items {
		o, ok := item.(T)
		if !ok {
			return fmt.Errorf("unexpected object of type %T", item)
		}
		o.SetManagedFields(nil)
		objects[key(o)] = o
	}
	c.mu.Lock()
	c.objects, c.synced = objects, true
	c.mu.Unlock()
	c.succeeded()
	c.changed()
	return nil
}

// Bookmark notes that the server has answered and nothing has changed.
func (c *Cache[T]) Bookmark(string) error {
	c.succeeded()
	return nil
}

// Resync does nothing.
func (c *Cache[T]) Resync() error { return nil }
