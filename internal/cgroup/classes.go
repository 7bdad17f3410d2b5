package cgroup

import (
	"context"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// BestEffort is the last element of the class of pods that asked for nothing,
// which together have the least weight that there is.
const BestEffort = "besteffort"

// leastShares is the kernel's least weight, mostShares its greatest.
const (
	leastShares = 2
	mostShares  = 262144
)

// Classes are the cgroups of pods, some of which are in a class: a cgroup between
// theirs and the root of the tree, as the kubelet has one for each quality of
// service but the best. A class weighs as much as its pods asked for together,
// so that they get no more than that when the processors are busy. It is there
// as long as a pod of it is.
type Classes struct {
	*Tree
	mu sync.Mutex
	// shares of the pods' cgroups, by class.
	shares map[string]map[string]uint64
}

// NewClasses returns those in the tree.
func NewClasses(t *Tree) *Classes {
	return &Classes{Tree: t, shares: map[string]map[string]uint64{}}
}

// class returns the class that a pod's cgroup is in.
func (c *Classes) class(cgroup string) (class string, ok bool) {
	class = path.Dir(cgroup)
	return class, class != c.root && c.owns(class) == nil
}

// Create makes a pod's cgroup, which may be there already, and sets its limits.
func (c *Classes) Create(cgroup string, limits Limits) error {
	class, ok := c.class(cgroup)
	if !ok {
		return c.Tree.Create(cgroup, limits)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if limits.CPUShares > 0 {
		c.note(class, cgroup, limits.CPUShares)
	}
	if err := c.weigh(class); err != nil {
		return err
	}
	return c.Tree.Create(cgroup, limits)
}

// Know takes note of a pod's cgroup from before this process.
func (c *Classes) Know(cgroup string, shares uint64) {
	if class, ok := c.class(cgroup); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.note(class, cgroup, shares)
	}
}

// Remove kills what runs in a pod's cgroup and removes it, and its class with the
// last one.
func (c *Classes) Remove(ctx context.Context, cgroup string) error {
	if err := c.Tree.Remove(ctx, cgroup); err != nil {
		return err
	}
	class, ok := c.class(cgroup)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.shares[class], cgroup)
	if len(c.shares[class]) > 0 {
		return c.weigh(class)
	}
	delete(c.shares, class)
	c.tidy(class)
	return nil
}

// Tidy removes the classes that nothing is in: left by a process that was killed.
func (c *Classes) Tidy(classes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range classes {
		if class := path.Join(c.root, name); len(c.shares[class]) == 0 {
			c.tidy(class)
		}
	}
}

// tidy leaves alone what is not empty: the kernel refuses.
func (c *Classes) tidy(class string) {
	for _, mount := range c.mounts {
		_ = unix.Rmdir(filepath.Join(mount, class))
	}
}

func (c *Classes) note(class, cgroup string, shares uint64) {
	if c.shares[class] == nil {
		c.shares[class] = map[string]uint64{}
	}
	c.shares[class][cgroup] = shares
}

// weigh gives a class the weight of its pods. The caller holds c.mu.
func (c *Classes) weigh(class string) error {
	sum := uint64(leastShares)
	if path.Base(class) != BestEffort {
		sum = 0
		for _, shares := range c.shares[class] {
			sum += shares
		}
	}
	return c.Tree.Create(class, Limits{CPUShares: min(max(sum, leastShares), mostShares)})
}
