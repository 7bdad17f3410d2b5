package database

import (
	"context"
	"crypto/rand"
	"os"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// upperdirLabel is the label in which the overlay snapshotter stores the directory of
// a snapshot (overlay.WithUpperdirLabel).
const upperdirLabel = "containerd.io/snapshot/overlay.upperdir"

// Layers are the unpacked layers, by chain ID: the digest of a layer and all
// below it. Its methods need a context from an Operation or from Context.
type Layers struct {
	snapshots snapshots.Snapshotter
	leases    leases.Manager
}

// Layer is an unpacked layer.
type Layer struct {
	ChainID digest.Digest
	Dir     string
	Bytes   int64 // on disk
	Inodes  int64
}

// Stack returns the layer with the chain ID top and those below it, topmost first.
func (l Layers) Stack(ctx context.Context, top digest.Digest) ([]Layer, error) {
	var stack []Layer
	for key := top.String(); key != ""; {
		info, err := l.snapshots.Stat(ctx, key)
		if err != nil {
			return nil, err
		}
		usage, err := l.snapshots.Usage(ctx, key)
		if err != nil {
			return nil, err
		}
		stack = append(stack, Layer{digest.Digest(key), info.Labels[upperdirLabel], usage.Size, usage.Inodes})
		key = info.Parent
	}
	return stack, nil
}

// Retain reports whether a layer is unpacked, and if so adds it to the operation of ctx.
func (l Layers) Retain(ctx context.Context, chainID digest.Digest) (bool, error) {
	key := chainID.String()
	if _, err := l.snapshots.Stat(ctx, key); errdefs.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	lease, _ := leases.FromContext(ctx)
	err := l.leases.AddResource(ctx, leases.Lease{ID: lease}, leases.Resource{ID: key, Type: "snapshots/" + snapshotter})
	if err != nil {
		return false, err
	}
	_, err = l.snapshots.Stat(ctx, key) // it may have been removed before the lease had it
	return err == nil, nil
}

// NewLayer is a layer that is being unpacked. It belongs to no image before Commit.
type NewLayer struct {
	// Dir is for the layer's files.
	Dir string

	layers  Layers
	chainID digest.Digest
	key     string
}

// Create begins a layer. It returns nil if the layer exists. Commit or Discard ends it; otherwise
// the end of the operation of ctx does. Several may create one layer: the first Commit makes it,
// and the others fail because it exists.
func (l Layers) Create(ctx context.Context, chainID digest.Digest) (*NewLayer, error) {
	key := "unpacking-" + rand.Text()
	_, err := l.snapshots.Prepare(ctx, key, "", target(chainID)) // Commit sets the parent
	if errdefs.IsAlreadyExists(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n := &NewLayer{layers: l, chainID: chainID, key: key}
	info, err := l.snapshots.Stat(ctx, key)
	if err != nil {
		n.Discard(ctx)
		return nil, err
	}
	n.Dir = info.Labels[upperdirLabel]
	return n, nil
}

func target(chainID digest.Digest) snapshots.Opt {
	return snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: chainID.String()})
}

// Commit puts the layer on top of parent, which is empty for the lowest layer.
func (n *NewLayer) Commit(ctx context.Context, parent digest.Digest) error {
	return n.layers.snapshots.Commit(ctx, n.chainID.String(), n.key, target(n.chainID), snapshots.WithParent(parent.String()))
}

// Discard deletes the layer.
func (n *NewLayer) Discard(ctx context.Context) {
	// If the disk is full, the database can't grow to record the removal. So free the space first.
	if n.Dir != "" {
		_ = os.RemoveAll(n.Dir)
	}
	_ = n.layers.snapshots.Remove(context.WithoutCancel(ctx), n.key) // otherwise the end of the operation does
}

// Dirs returns the directories of the layers of a stack.
func Dirs(stack []Layer) []string {
	var dirs []string
	for _, l := range stack {
		dirs = append(dirs, l.Dir)
	}
	return dirs
}

// Remove removes the layer top and those below it, down to the first one that another
// layer is on.
func (l Layers) Remove(ctx context.Context, top digest.Digest) {
	for key := top.String(); key != ""; {
		info, err := l.snapshots.Stat(ctx, key)
		if err != nil {
			return
		}
		if err := l.snapshots.Remove(ctx, key); err != nil {
			return
		}
		key = info.Parent
	}
}

func (l Layers) usage(ctx context.Context) (int64, error) {
	var total int64
	err := l.snapshots.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			return nil
		}
		usage, err := l.snapshots.Usage(ctx, info.Name)
		total += usage.Size
		return err
	})
	return total, err
}
