package policytable

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/huskd/husk/internal/network/kernelwatch"
)

const (
	// reapTime is how often unused rules are removed, and verifyTime how often the others are
	// compared even if no change of them was announced.
	reapTime   = time.Second
	verifyTime = 30 * time.Second
	// After repairBurst repairs at once there is one each repairPace, so that a program that changes
	// the table again and again doesn't keep the node busy.
	repairBurst = 10
	repairPace  = 2 * time.Second
)

// Maintain keeps the kernel as it was loaded until ctx ends. It removes what is unused, and puts
// back at once what others change, which they can before Linux 6.9 only. Connections that began
// meanwhile and are denied end.
func (t *Table) Maintain(ctx context.Context, log *slog.Logger) {
	changed := make(chan struct{}, 1)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := t.watch(ctx, changed); err != nil {
			log.Warn(fmt.Sprintf("network policy: the rules in the kernel are compared every %v only", verifyTime), "error", err)
		}
	}()
	m := maintainer{t: t, log: log, limit: rate.NewLimiter(rate.Every(repairPace), repairBurst)}
	m.run(ctx, changed)
	<-watched
}

// watch puts a token into changed when others have changed the table, until ctx ends.
func (t *Table) watch(ctx context.Context, changed chan<- struct{}) error {
	own, err := t.kernel.conn.PortID()
	if err != nil {
		return err
	}
	return kernelwatch.WatchTable(ctx, t.netns, t.kernel.name, own, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
}

type maintainer struct {
	t      *Table
	log    *slog.Logger
	limit  *rate.Limiter
	slowed bool // has been logged since the limit was last full
}

func (m *maintainer) run(ctx context.Context, changed <-chan struct{}) {
	reap, verify := time.NewTicker(reapTime), time.NewTicker(verifyTime)
	defer reap.Stop()
	defer verify.Stop()
	var again <-chan time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-reap.C:
			if m.t.Unused() > 0 {
				err = m.t.Reap()
			}
		case <-changed:
			err = m.verify(ctx)
		case <-verify.C:
			err = m.verify(ctx)
		case <-again:
			again = nil
			err = m.verify(ctx)
		}
		if err != nil && ctx.Err() == nil {
			m.log.Warn("network policy: the rules in the kernel can't be maintained; trying again", "error", err)
			again = time.After(repairPace)
		}
	}
}

// verify compares the kernel with what was loaded, and repairs it.
func (m *maintainer) verify(ctx context.Context) error {
	found, err := m.t.Verify()
	if err != nil {
		return err
	}
	if len(found) > 0 {
		if err := m.pace(ctx, found); err != nil {
			return err
		}
		if err := m.t.Repair(); err != nil {
			return err
		}
	}
	_, err = m.t.EndFlows()
	return err
}

// pace logs a repair, and waits if there were many.
func (m *maintainer) pace(ctx context.Context, found []string) error {
	if m.limit.Tokens() >= float64(m.limit.Burst()-1) {
		m.slowed = false
	}
	if !m.slowed {
		m.log.Warn("network policy: others have changed the rules in the kernel; putting them back", "differences", len(found), "first", found[0])
	}
	if m.limit.Allow() {
		return nil
	}
	if !m.slowed {
		m.slowed = true
		m.log.Warn(fmt.Sprintf("network policy: others change the rules in the kernel again and again; from now on they are put back every %v: find the program that does it", repairPace))
	}
	return m.limit.Wait(ctx)
}
