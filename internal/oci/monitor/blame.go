package monitor

import (
	"os"
	"path"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cgroup/systemd"
)

// saveCreated saves the record of a container that has been created.
func (c *container) saveCreated() error {
	if c.Systemd {
		c.driver.oomMu.Lock()
		defer c.driver.oomMu.Unlock()
		c.OthersKilled = otherOOMKills(c)
	}
	return c.save()
}

// blame says whether the kernel has killed a process of a container that has
// ended for want of memory. Systemd removes a scope, and its count with it, as
// the last process ends, which may be before anybody has read it. The count of
// the slice remains, and has those of all scopes that there ever were: what no
// scope that is there accounts for, and none before did, was this one's. The
// caller may know already, from conmon; then the others' records learn of it.
func (c *container) attributeOOM(known bool) bool {
	c.driver.oomMu.Lock()
	defer c.driver.oomMu.Unlock()
	all := otherOOMKills(c)
	if all <= c.OthersKilled {
		return known
	}
	// The mark is first: what was blamed once stays so.
	if f, err := os.OpenFile(c.path(oomFile), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_ = f.Close()
	}
	ids, _ := c.driver.List()
	for _, id := range ids {
		if other, err := c.driver.find(id); err == nil && path.Dir(other.Cgroup) == path.Dir(c.Cgroup) {
			other.OthersKilled = all
			_ = other.save()
		}
	}
	c.OthersKilled = all
	return true
}

// killed counts for the container and for all in its slice that are no more. A
// slice that isn't one pod's, and has others' units, tells nothing: it is zero.
func otherOOMKills(c *container) int {
	slice, err := cgroup.New(c.driver.cfg.Host.Cgroup, path.Dir(c.Cgroup))
	if err != nil {
		return 0
	}
	shared := false
	n := slice.OtherOOMKills(func(child string) bool {
		_, ours := systemd.Unit(child)
		shared = shared || !ours
		return child != c.Cgroup
	})
	if shared {
		return 0
	}
	return n
}
