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

// attributeOOM reports whether the kernel OOM-killed a process of an exited container that was in a
// systemd scope; known says that conmon has reported it already.
//
// Systemd removes a scope, with its count of OOM kills, when the last process exits, which may be
// before anything has read it. The count of the slice remains and includes those of all its scopes,
// existing or not. So kills that neither an existing scope nor an earlier container accounts for
// are this container's. attributeOOM then records them in all containers of the slice, so that they
// count only once.
func (c *container) attributeOOM(known bool) bool {
	c.driver.oomMu.Lock()
	defer c.driver.oomMu.Unlock()
	all := otherOOMKills(c)
	if all <= c.OthersKilled {
		return known
	}
	// First, so that the result stays the same after a crash.
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

// otherOOMKills returns the OOM kills in the container and in all removed scopes of its slice. It
// returns 0 if the slice also has units that aren't Husk's, because theirs can't be told apart.
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
