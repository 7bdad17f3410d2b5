package policytable

import (
	"context"
	"log/slog"
	"time"

	"github.com/huskd/husk/internal/network/nftable"
)

// reapTime is how often unused rules are removed.
const reapTime = time.Second

// Maintain keeps the kernel as it was loaded until ctx ends. It removes what is unused, and puts
// back at once what others change, which they can before Linux 6.9 only. Connections that began
// meanwhile and are denied end.
func (t *Table) Maintain(ctx context.Context, log *slog.Logger) {
	keeper := nftable.Keeper{
		Subject: "network policy", Netns: t.netns, Table: t.kernel.Name, Own: t.kernel.Conn, Log: log,
		Verify: t.Verify, Repair: t.Repair, ReapTime: reapTime,
		Verified: func() error {
			_, err := t.EndFlows()
			return err
		},
		Reap: func() error {
			if t.Unused() == 0 {
				return nil
			}
			return t.Reap()
		},
	}
	keeper.Run(ctx)
}
