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

// upperdirLabel is where the overlay snapshotter, when asked to, tells the
// directory of a snapshot.
const upperdirLabel = "containerd.io/snapshot/overlay.upperdir"

// Layers are the unpacked layers, by chain ID: the digest of a layer and all
// below it. The contexts of its methods come from an Operation or from Context.
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

// Stack returns the layer with a chain ID and those below it, topmost first.
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

// Keep says whether a layer is unpacked, and if so makes the operation keep it.
func (l Layers) Keep(ctx context.Context, chainID digest.Digest) (bool, error) {
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
	_, err = l.snapshots.Stat(ctx, key) // it may have gone before the lease came
	return err == nil, nil
}

// Add makes a layer on top of parent, which is empty for the lowest: fill puts
// the layer's files into dir and is told the directories of the layers below,
// topmost first. If the layer is there, fill isn't called. Nothing stays of it
// when fill fails.
func (l Layers) Add(ctx context.Context, chainID, parent digest.Digest, fill func(dir string, below []string) error) error {
	key := "unpacking-" + rand.Text()
	labels := snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: chainID.String()})
	_, err := l.snapshots.Prepare(ctx, key, parent.String(), labels)
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.fill(ctx, key, parent, fill); err != nil {
		_ = l.snapshots.Remove(context.WithoutCancel(ctx), key) // or else the operation's end does
		return err
	}
	return l.snapshots.Commit(ctx, chainID.String(), key, labels)
}

func (l Layers) fill(ctx context.Context, key string, parent digest.Digest, fill func(dir string, below []string) error) error {
	info, err := l.snapshots.Stat(ctx, key)
	if err != nil {
		return err
	}
	below, err := l.Stack(ctx, parent)
	if err != nil {
		return err
	}
	dir := info.Labels[upperdirLabel]
	if err := fill(dir, Dirs(below)); err != nil {
		// At once, because the disk may be full, and the database then can't
		// grow to say that the layer is gone.
		_ = os.RemoveAll(dir)
		return err
	}
	return nil
}

// Dirs returns the directories of layers.
func Dirs(stack []Layer) []string {
	var dirs []string
	for _, l := range stack {
		dirs = append(dirs, l.Dir)
	}
	return dirs
}

// Forget removes layers, from the topmost down to one that another lies on.
func (l Layers) Forget(ctx context.Context, top digest.Digest) {
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
