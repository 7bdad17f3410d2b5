package nodes

import (
	"context"

	"github.com/huskd/husk/internal/network/peer"
)

// See sets the registry's view, as Registry.Run does.
func (c *Controller) See(v peer.View) { c.update(v) }

// Pass runs a single pass.
func (c *Controller) Pass(ctx context.Context) error { return c.pass(ctx) }
