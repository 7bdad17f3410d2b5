package servicetable

import (
	"context"
	"log/slog"

	"github.com/huskd/husk/internal/network/nftable"
)

// Maintain keeps the kernel as it was applied until ctx ends. It puts back at once what others
// change, which they can before Linux 6.9 only. Connections that began meanwhile and lead nowhere
// end.
func (t *Table) Maintain(ctx context.Context, log *slog.Logger) {
	keeper := nftable.Keeper{
		Subject: "services", Netns: t.netns, Table: t.kernel.Name, Own: t.kernel.Conn, Log: log,
		Verify: t.Verify, Repair: t.Repair,
		Verified: func() error {
			_, err := t.End(nil)
			return err
		},
	}
	keeper.Run(ctx)
}
