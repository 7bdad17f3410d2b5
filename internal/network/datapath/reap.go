package datapath

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// Deleting links by group costs one wait for RCU grace periods, 15 to 25 ms, for any number of
// links. But for each link the kernel holds rtnl_mutex for a quarter of a millisecond, without a
// break, and attachments have to wait. So links are spread over several groups, perGroup at a time,
// and reapers of these are deleted concurrently.
const (
	groups   = 16
	perGroup = 8
	reapers  = 2
)

// groupAllocator assigns groups to links. The groups differ from each other, and from the
// instance's tag, in the upper half.
type groupAllocator struct {
	tag   uint32
	count atomic.Uint32
}

// next returns the group for the next link to delete.
func (d *groupAllocator) next() uint32 { return d.group(d.count.Add(1) / perGroup % groups) }

func (d *groupAllocator) group(i uint32) uint32 { return d.tag + i<<16 }

// has reports whether a link is in one of the groups.
func (d *groupAllocator) has(l rtnetlink.Link) bool {
	i := l.Group - d.tag
	return i&0xffff == 0 && i>>16 < groups
}

// Reap deletes the links marked for deletion, and returns when they are gone.
func (d *Datapath) Reap() error {
	var g errgroup.Group
	g.SetLimit(reapers)
	for i := range uint32(groups) {
		g.Go(func() error {
			c := <-d.reapConns
			defer func() { d.reapConns <- c }()
			group := d.deletion.group(i)
			if err := c.Do(rtnetlink.DeleteLinks("", group))[0].Err; err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("delete links of group %#x: %w", group, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// markForDeletion sets a link down and lets the next Reap delete it.
func (d *Datapath) markForDeletion(link string) error {
	return d.withConn(func(c *nlsock.Conn) error {
		err := c.Do(rtnetlink.SetLink(rtnetlink.LinkChange{Name: link, Down: true, Group: d.deletion.next()}))[0].Err
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("link %s: mark for deletion: %w", link, err)
		}
		return nil
	})
}
