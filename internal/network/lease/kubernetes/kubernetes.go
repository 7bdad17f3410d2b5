// Package kubernetes is a registry of nodes in a Kubernetes API server. A node's blocks are the
// podCIDRs that the controller manager has given to its Node, and its record is an annotation of
// the Node, which the node itself writes.
//
// There is no lease and no fence: Kubernetes doesn't change the podCIDRs of a Node and doesn't give
// them to another as long as the Node exists. While the API server is away, a node goes on using
// them, also when huskd restarts. When the Node is deleted, the node stops giving out addresses as
// soon as it learns of it.
package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/huskd/husk/internal/backoff"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/network/lease/flannel"
	"github.com/huskd/husk/internal/network/peer"
)

// Annotation is the annotation of a Node that holds its record.
const Annotation = "husk.dev/network"

const nodes = "/api/v1/nodes"

// The first wait before a failed write is repeated, and the one before the same text is written
// again that somebody has removed.
const (
	firstRetry = time.Second
	rewrite    = time.Second
)

// Journal keeps the blocks over restarts of huskd.
type Journal interface {
	Get(key string) ([]byte, bool)
	Put(key string, value []byte) error
}

// journalKey is the key of the blocks in the journal, as saved, or as a list of subnets by a former
// version.
const journalKey = "node-pod-cidrs"

// saved is what the journal has.
type saved struct {
	Node   string         `json:"node"`
	Blocks []netip.Prefix `json:"blocks"`
}

func load(j Journal, node string) (s saved) {
	data, ok := j.Get(journalKey)
	if !ok || json.Unmarshal(data, &s.Blocks) == nil {
		s.Node = node
		return s
	}
	_ = json.Unmarshal(data, &s) // if that fails, the API server tells
	return s
}

// Config configures a Registry.
type Config struct {
	// Connect returns a client of the API server once the node has a certificate for it, or the
	// error of ctx.
	Connect func(ctx context.Context) (*cluster.Client, error)
	// Node is the name of this node's Node.
	Node    string
	Journal Journal
}

// Registry follows the Nodes of an API server. It implements peer.Registry. Nodes with flanneld's
// annotations are peers, too; as soon as there is one, this node has such annotations beside its
// own.
type Registry struct {
	Config
	changed chan struct{} // something on the server
	due     chan struct{} // something that may have to be written
	former  saved         // as the last huskd left it

	mu     sync.Mutex
	client *cluster.Client        // nil before Connect has returned, and set only once
	nodes  *cluster.Cache[*entry] // nil as long as client is
	record *peer.Node             // what was announced
	known  bool                   // whether blocks are known, from the server or the journal
	gone   bool                   // whether the server has no Node of this name
	blocks []netip.Prefix         // this node's
	// flannel is the backend of the flannel network that some nodes are in, and empty if none is.
	flannel flannel.Backend
}

var _ peer.Registry = (*Registry)(nil)

// New returns the registry of a node. It sends no request yet.
func New(cfg Config) *Registry {
	r := &Registry{Config: cfg, changed: make(chan struct{}, 1), due: make(chan struct{}, 1)}
	if r.former = load(cfg.Journal, cfg.Node); r.former.Node == cfg.Node {
		r.blocks, r.known = r.former.Blocks, len(r.former.Blocks) > 0
	}
	return r
}

// Renamed returns an error if pods have addresses of the podCIDRs of another Node, as which this
// node ran before: Kubernetes can't give these to this one.
func (r *Registry) Renamed(used []peer.Usage) error {
	f := r.former
	of := func(u peer.Usage) bool { return u.Used > 0 && slices.ContainsFunc(f.Blocks, u.Block.Overlaps) }
	if f.Node == r.Node || !slices.ContainsFunc(used, of) {
		return nil
	}
	return fmt.Errorf("node %s was node %s before, and has pods with addresses of that Node's podCIDRs %v, which Kubernetes can't give to another Node: set node-name to %s; or remove these pods while the name is that, and delete Node %s afterwards",
		r.Node, f.Node, f.Blocks, f.Node, f.Node)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run implements peer.Registry.
func (r *Registry) Run(ctx context.Context, update func(peer.View)) error {
	client, err := r.Connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	cache := cluster.Project(ctx, client, cluster.List{Path: nodes, Item: &corev1.Node{}, List: &corev1.NodeList{}}, r.keep, func() { wake(r.changed) })
	r.mu.Lock()
	r.client, r.nodes = client, cache
	r.mu.Unlock()
	var writer sync.WaitGroup
	writer.Go(func() { r.write(ctx) })
	defer writer.Wait()
	var last *peer.View
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		}
		if !cache.Synced() || ctx.Err() != nil {
			continue
		}
		v, backend := view(r.Node, cache.All())
		own, exists := cache.Get("", r.Node)
		r.take(own, exists)
		r.join(backend)
		wake(r.due)
		if last == nil || !v.Equal(*last) {
			update(v)
			last = &v
		}
	}
}

// take takes over this node's blocks from its Node.
func (r *Registry) take(own *entry, exists bool) {
	var blocks []netip.Prefix
	if exists {
		blocks = own.peer.Blocks
	}
	r.mu.Lock()
	unchanged := r.known && slices.Equal(r.blocks, blocks)
	r.blocks, r.known, r.gone = blocks, true, !exists
	r.mu.Unlock()
	if unchanged {
		return
	}
	data, err := json.Marshal(saved{r.Node, blocks})
	if err == nil {
		err = r.Journal.Put(journalKey, data)
	}
	if err != nil {
		err = fmt.Errorf("record the pod CIDRs of node %s: %w", r.Node, err)
	}
	r.client.LogOnce("recording the pod CIDRs", err)
}

// join makes this node a part of a flannel network, for good.
func (r *Registry) join(b flannel.Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flannel = cmp.Or(b, r.flannel)
}

// Announce implements peer.Registry.
func (r *Registry) Announce(record peer.Node) {
	record.Version, record.Name = peer.Version, r.Node
	r.mu.Lock()
	r.record = &record
	r.mu.Unlock()
	wake(r.due)
}

// May implements peer.Registry.
func (r *Registry) May(block netip.Prefix) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Blocks of the journal don't say why there are no others.
	waits := !r.known || !block.IsValid() && (r.nodes == nil || !r.nodes.Synced())
	switch {
	case slices.Contains(r.blocks, block):
		return nil
	case waits && r.nodes == nil:
		return fmt.Errorf("node %s has no connection to the API server yet, and its pod subnets are those of its Node there", r.Node)
	case waits && r.nodes.Err() != nil:
		return fmt.Errorf("pod subnets of node %s: %w", r.Node, explain(r.nodes.Err()))
	case waits:
		return fmt.Errorf("the API server at %s hasn't sent its nodes yet, and with them the pod subnets of node %s", r.client.Server, r.Node)
	case r.gone:
		return fmt.Errorf("the API server at %s has no Node %s, so its pod subnets may be another's", r.client.Server, r.Node)
	case len(r.blocks) == 0:
		return fmt.Errorf("the API server at %s has no podCIDRs for node %s yet: %s", r.client.Server, r.Node, needsController)
	case !block.IsValid():
		return fmt.Errorf("node %s has no other podCIDRs than %v", r.Node, r.blocks)
	default:
		return fmt.Errorf("%v is not among the podCIDRs of node %s, which are %v", block, r.Node, r.blocks)
	}
}

// explain adds what to do to the error that a kubelet's kubeconfig leads to: since 1.32, the Node
// authorizer allows a node to read its own Node only.
func explain(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s; bind a ClusterRole with get, list and watch of nodes to the group system:nodes", cluster.OneLine(err))
	}
	return errors.New(cluster.OneLine(err))
}

// Leave removes the node's annotations, so that it is no peer of other nodes, and forgets its
// blocks. Run has returned.
func (r *Registry) Leave(ctx context.Context) error {
	r.mu.Lock()
	client, backend := r.client, r.flannel
	r.blocks, r.known = nil, false
	r.mu.Unlock()
	if err := r.Journal.Put(journalKey, []byte("[]")); err != nil {
		return fmt.Errorf("forget the pod CIDRs of node %s: %w", r.Node, err)
	}
	if client == nil {
		return fmt.Errorf("node %s has no connection to the API server yet", r.Node)
	}
	gone := map[string]any{}
	written, _ := annotations(peer.Node{}, backend) // the names are the same for all records
	for key := range written {
		gone[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": gone}})
	if err == nil {
		err = client.Patch(ctx, nodes+"/"+r.Node, patch, &corev1.Node{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the network annotations of node %s: %s", r.Node, cluster.OneLine(err))
	}
	return nil
}

// Used implements peer.Registry. The number of a Node's podCIDRs is fixed, so nothing depends on
// it.
func (r *Registry) Used([]peer.Usage) {}

// write writes this node's annotations whenever they differ from what it has announced.
func (r *Registry) write(ctx context.Context) {
	var (
		retry    <-chan time.Time
		failures int
		written  string
		at       time.Time
	)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.due:
		case <-retry:
		}
		retry = nil
		patch, err := r.patch()
		if patch != "" {
			if wait := time.Until(at.Add(rewrite)); patch == written && wait > 0 {
				retry = time.After(wait)
				continue
			}
			if err = r.client.Patch(ctx, nodes+"/"+r.Node, []byte(patch), &corev1.Node{}); err == nil {
				written, at, failures = patch, time.Now(), 0
			} else if !apierrors.IsNotFound(err) { // if it is, the Node is made anew, which shows
				failures++
				retry = time.After(backoff.Wait(firstRetry, failures, rand.Float64()))
			}
		}
		r.client.LogOnce("the network annotations of this node", err)
	}
}

// patch returns the patch that is needed on the server's Node, or an empty string.
func (r *Registry) patch() (string, error) {
	r.mu.Lock()
	record, cache, backend := r.record, r.nodes, r.flannel
	r.mu.Unlock()
	if record == nil || cache == nil {
		return "", nil
	}
	own, ok := cache.Get("", r.Node)
	if !ok {
		return "", nil
	}
	n := *record
	n.Blocks = own.peer.Blocks
	want, fault := annotations(n, backend)
	for key, text := range want {
		if own.annotations[key] == text {
			delete(want, key)
		}
	}
	if len(want) == 0 {
		return "", fault
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": want}})
	if err != nil {
		return "", err
	}
	return string(patch), fault
}

// annotations returns the annotations for a record. An error says that it can't be told to
// flannel's nodes, whose backend is given.
func annotations(n peer.Node, b flannel.Backend) (map[string]string, error) {
	data, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	out := map[string]string{Annotation: string(data)}
	if b == "" {
		return out, nil
	}
	theirs, err := flannel.Assume(b, n.Blocks).Annotations(n)
	maps.Copy(out, theirs)
	return out, err
}
