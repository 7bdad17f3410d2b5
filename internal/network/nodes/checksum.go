package nodes

import (
	"fmt"
	"slices"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
)

// cure is what was done about wrong checksums of VXLAN packets.
type cure struct {
	// tried are the links whose checksum offloading was switched off to see whether that helps.
	tried  []string
	helped bool
}

// cureChecksums switches checksum offloading off while the heartbeat suspects it, and on again
// unless that has helped. Then it stays off, as the network card stays the same.
func (c *Controller) cureChecksums(links []backend.Link) error {
	suspect := false
	for _, h := range c.cfg.Prober.Impaired() {
		suspect = suspect || h.Checksums == heartbeat.ChecksumsSuspect
		c.cure.helped = c.cure.helped || h.Checksums == heartbeat.ChecksumsCured
	}
	if suspect && len(c.cure.tried) == 0 && !c.cure.helped {
		off := c.cfg.Kernel.Unsummed()
		for _, l := range links {
			if l.Way != backend.VXLAN || slices.Contains(off, l.Name) {
				continue
			}
			if err := c.cfg.Kernel.TxChecksum(l.Name, false); err != nil {
				return err
			}
			c.cure.tried = append(c.cure.tried, l.Name)
		}
		return nil
	}
	if suspect || c.cure.helped {
		return nil
	}
	for len(c.cure.tried) > 0 {
		if err := c.cfg.Kernel.TxChecksum(c.cure.tried[0], true); err != nil {
			return err
		}
		c.cure.tried = c.cure.tried[1:]
	}
	return nil
}

// unsummedNotes says that checksum offloading is off.
func unsummedNotes(links []string) (notes []string) {
	for _, l := range links {
		notes = append(notes, fmt.Sprintf("the checksum offloading of %s is off, as packets with offloaded checksums didn't reach other nodes by VXLAN: "+
			"look for an update of the kernel or the network card's firmware", l))
	}
	return notes
}
