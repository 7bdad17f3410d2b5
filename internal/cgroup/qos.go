package cgroup

import (
	"context"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// BestEffort is the name of the QoS class of pods that request nothing. Its cgroup has the lowest
// weight that there is, however many pods it holds.
const BestEffort = "besteffort"

// The range of the kernel's cpu.shares.
const (
	minShares = 2
	maxShares = 262144
)

// QoSTree is a Tree of pods' cgroups with the kubelet's QoS classes: a pod's cgroup is a child of
// the root of the tree (guaranteed) or of its class (burstable, besteffort). A class has the sum of
// its pods' CPU shares, so that together they get no more than they requested when the CPUs are
// busy. Its cgroup exists as long as it holds a pod.
type QoSTree struct {
	*Tree
	mu sync.Mutex
	// shares of the pods' cgroups, by the cgroup of the class.
	shares map[string]map[string]uint64
}

// NewQoSTree returns a QoSTree in which no pod is known.
func NewQoSTree(t *Tree) *QoSTree {
	return &QoSTree{Tree: t, shares: map[string]map[string]uint64{}}
}

// class returns the class that a pod's cgroup is in; not ok if it is in none.
func (q *QoSTree) class(cgroup string) (class string, ok bool) {
	class = path.Dir(cgroup)
	return class, class != q.root && q.owns(class) == nil
}

// Create makes a pod's cgroup, which may exist already, and sets its limits.
func (q *QoSTree) Create(cgroup string, limits Limits) error {
	class, ok := q.class(cgroup)
	if !ok {
		return q.Tree.Create(cgroup, limits)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if limits.CPUShares > 0 {
		q.setShares(class, cgroup, limits.CPUShares)
	}
	if err := q.updateWeight(class); err != nil {
		return err
	}
	return q.Tree.Create(cgroup, limits)
}

// Adopt adds the shares of a pod's cgroup that an earlier process made.
func (q *QoSTree) Adopt(cgroup string, shares uint64) {
	if class, ok := q.class(cgroup); ok {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.setShares(class, cgroup, shares)
	}
}

// Remove kills what runs in a pod's cgroup and removes it, and its class after the last pod.
func (q *QoSTree) Remove(ctx context.Context, cgroup string) error {
	if err := q.Tree.Remove(ctx, cgroup); err != nil {
		return err
	}
	class, ok := q.class(cgroup)
	if !ok {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.shares[class], cgroup)
	if len(q.shares[class]) > 0 {
		return q.updateWeight(class)
	}
	delete(q.shares, class)
	q.removeEmpty(class)
	return nil
}

// RemoveEmpty removes the cgroups of the named classes that hold nothing. A process that was killed
// may have left them.
func (q *QoSTree) RemoveEmpty(classes ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range classes {
		if class := path.Join(q.root, name); len(q.shares[class]) == 0 {
			q.removeEmpty(class)
		}
	}
}

// removeEmpty relies on the kernel, which refuses to remove a cgroup that isn't empty.
func (q *QoSTree) removeEmpty(class string) {
	for _, mount := range q.mounts {
		_ = unix.Rmdir(filepath.Join(mount, class))
	}
}

// setShares records the shares of a pod. The caller holds q.mu.
func (q *QoSTree) setShares(class, cgroup string, shares uint64) {
	if q.shares[class] == nil {
		q.shares[class] = map[string]uint64{}
	}
	q.shares[class][cgroup] = shares
}

// updateWeight gives a class the weight of its pods. The caller holds q.mu.
func (q *QoSTree) updateWeight(class string) error {
	sum := uint64(minShares)
	if path.Base(class) != BestEffort {
		sum = 0
		for _, shares := range q.shares[class] {
			sum += shares
		}
	}
	return q.Tree.Create(class, Limits{CPUShares: min(max(sum, minShares), maxShares)})
}
