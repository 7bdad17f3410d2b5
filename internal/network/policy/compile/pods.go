package compile

import (
	"maps"
	"slices"

	"github.com/huskd/husk/internal/network/policy"
)

// pod is a pod with its bits.
type pod struct {
	*policy.Pod
	key       string
	signature *signature
	dirty     bool
}

// address is a pod's.
type address struct {
	pod *pod // that has it, if several claim it
	// class is nil if it is that of the range.
	class *class
	// id is what the kernel has, or World if it has none.
	id Identity
}

// applyPods makes the pending changes of namespaces and pods.
func (c *Compiler) applyPods() {
	relabelled := map[string]bool{}
	for name, set := range c.pending.Namespaces {
		if maps.Equal(c.namespaces[name], set) {
			continue
		}
		if relabelled[name] = true; set == nil {
			delete(c.namespaces, name)
		} else {
			c.namespaces[name] = set
		}
		c.criteria.index.relabelled(name)
	}
	if len(relabelled) > 0 {
		for _, p := range c.pods {
			if relabelled[p.Namespace] {
				c.mark(p)
			}
		}
	}
	for key, next := range c.pending.Pods {
		old := c.pods[key]
		switch {
		case next == nil && old == nil:
		case next == nil:
			delete(c.pods, key)
			c.disclaim(old)
			c.classes.hold(old.signature, nil)
			old.signature = nil
		case old == nil:
			p := &pod{Pod: next, key: key}
			c.pods[key] = p
			c.claim(p)
			c.mark(p)
		default:
			moved := !slices.Equal(old.Addresses, next.Addresses) || !old.Started.Equal(next.Started)
			if moved {
				c.disclaim(old)
			}
			if old.Namespace != next.Namespace || !maps.Equal(old.Labels, next.Labels) || !slices.Equal(old.Ports, next.Ports) {
				c.mark(old)
			}
			old.Pod = next
			if moved {
				c.claim(old)
			}
		}
	}
	c.pending.Namespaces, c.pending.Pods = nil, nil
}

// mark makes the Commit look at a pod's labels and ports.
func (c *Compiler) mark(p *pod) {
	if !p.dirty {
		p.dirty = true
		c.dirty = append(c.dirty, p)
	}
}

// claim makes a pod's addresses its own, unless another pod has them that started later.
func (c *Compiler) claim(p *pod) {
	for _, addr := range p.Addresses {
		a, taken := c.addresses[addr]
		if !usable(addr) || taken && (a.pod == p || slices.Contains(c.rivals[addr], p)) {
			continue
		}
		c.touched[addr] = struct{}{}
		if a.pod == nil {
			a.pod = p
		} else {
			if c.rivals[addr] == nil {
				c.rivals[addr] = []*pod{a.pod}
			}
			c.rivals[addr] = append(c.rivals[addr], p)
			a.pod = p.wins(a.pod)
		}
		c.addresses[addr] = a
	}
}

// disclaim is the opposite of claim.
func (c *Compiler) disclaim(p *pod) {
	for _, addr := range p.Addresses {
		a, ok := c.addresses[addr]
		rivals, shared := c.rivals[addr]
		if !ok || a.pod != p && !slices.Contains(rivals, p) {
			continue
		}
		c.touched[addr] = struct{}{}
		a.pod = nil
		if shared {
			rivals = slices.DeleteFunc(rivals, func(r *pod) bool { return r == p })
			for _, r := range rivals {
				a.pod = r.wins(a.pod)
			}
			if c.rivals[addr] = rivals; len(rivals) == 1 {
				delete(c.rivals, addr)
			}
		}
		c.addresses[addr] = a
	}
}

// wins returns the one of two pods that has an address which both claim.
func (p *pod) wins(q *pod) *pod {
	if q == nil || p.Started.After(q.Started) || p.Started.Equal(q.Started) && p.key < q.key {
		return p
	}
	return q
}
