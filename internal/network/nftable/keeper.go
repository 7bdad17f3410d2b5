// Package nftable has what the instance's nftables tables share.
package nftable

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/huskd/husk/internal/network/kernelwatch"
	"github.com/huskd/husk/internal/network/nlsock"
)

const (
	// verifyTime is how often a table is compared even if no change of it was announced.
	verifyTime = 30 * time.Second
	// After repairBurst repairs at once there is one each repairPace, so that a program that
	// changes the table again and again doesn't keep the node busy.
	repairBurst = 10
	repairPace  = 2 * time.Second
)

// Keeper keeps an inet table as it was loaded. It puts back at once what others change, which they
// can before Linux 6.9 only.
type Keeper struct {
	Subject string // what the table is for; messages begin with it
	Netns   string // path of the network namespace; empty is the process's
	Table   string
	Own     *nlsock.Conn // the socket whose changes aren't others'
	Log     *slog.Logger

	// Verify describes how the kernel differs from what was loaded, and Repair makes it agree.
	Verify func() ([]string, error)
	Repair func() error
	// Verified is called after each comparison or repair.
	Verified func() error
	// Reap, unless nil, is called each ReapTime.
	Reap     func() error
	ReapTime time.Duration

	limit  *rate.Limiter
	slowed bool // has been logged since the limit was last full
}

// Run keeps the table until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	k.limit = rate.NewLimiter(rate.Every(repairPace), repairBurst)
	changed, watched := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(watched)
		if err := k.watch(ctx, changed); err != nil {
			k.Log.Warn(fmt.Sprintf("%s: the rules in the kernel are compared every %v only", k.Subject, verifyTime), "error", err)
		}
	}()
	k.keep(ctx, changed)
	<-watched
}

// watch puts a token into changed when others have changed the table, until ctx ends.
func (k *Keeper) watch(ctx context.Context, changed chan<- struct{}) error {
	own, err := k.Own.PortID()
	if err != nil {
		return err
	}
	return kernelwatch.WatchTable(ctx, k.Netns, k.Table, own, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
}

func (k *Keeper) keep(ctx context.Context, changed <-chan struct{}) {
	verify := time.NewTicker(verifyTime)
	defer verify.Stop()
	var reap <-chan time.Time
	if k.Reap != nil {
		ticker := time.NewTicker(k.ReapTime)
		defer ticker.Stop()
		reap = ticker.C
	}
	var again <-chan time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-reap:
			err = k.Reap()
		case <-changed:
			err = k.verify(ctx)
		case <-verify.C:
			err = k.verify(ctx)
		case <-again:
			again = nil
			err = k.verify(ctx)
		}
		if err != nil && ctx.Err() == nil {
			k.Log.Warn(k.Subject+": the rules in the kernel can't be maintained; trying again", "error", err)
			again = time.After(repairPace)
		}
	}
}

// verify compares the kernel with what was loaded, and repairs it.
func (k *Keeper) verify(ctx context.Context) error {
	found, err := k.Verify()
	if err != nil {
		return err
	}
	if len(found) > 0 {
		if err := k.pace(ctx, found); err != nil {
			return err
		}
		if err := k.Repair(); err != nil {
			return err
		}
	}
	return k.Verified()
}

// pace logs a repair, and waits if there were many.
func (k *Keeper) pace(ctx context.Context, found []string) error {
	if k.limit.Tokens() >= float64(k.limit.Burst()-1) {
		k.slowed = false
	}
	if !k.slowed {
		k.Log.Warn(k.Subject+": others have changed the rules in the kernel; putting them back", "differences", len(found), "first", found[0])
	}
	if k.limit.Allow() {
		return nil
	}
	if !k.slowed {
		k.slowed = true
		k.Log.Warn(fmt.Sprintf("%s: others change the rules in the kernel again and again; from now on they are put back every %v: find the program that does it", k.Subject, repairPace))
	}
	return k.limit.Wait(ctx)
}
