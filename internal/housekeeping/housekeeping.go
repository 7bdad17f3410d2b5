// Package housekeeping keeps the disk from filling up: it rotates the logs of the
// agent's containers, removes images that nobody uses when the disk is nearly
// full, and what pods have left that are gone, and evicts pods that take more of
// it than they may.
package housekeeping

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/logs"
)

// interval is the time between two looks. To look costs a system call for each log and
// one for the disk.
const interval = 5 * time.Second

// Config is what is kept in order, and how.
type Config struct {
	Containers *container.Service
	// Ours says whether a container is the agent's: who asked for another rotates
	// its log.
	Ours     func(container.Status) bool
	Rotation logs.Rotation
	Images   *image.Store
	Disk     Disk
	Storage  Storage
	Log      *slog.Logger
}

// Housekeeper keeps house.
type Housekeeper struct {
	Config
	images     map[string]imageTimes // images by ID
	warnedFull bool                  // it was said that the disk stays full
}

// New returns one that has seen nothing yet.
func New(cfg Config) *Housekeeper { return &Housekeeper{Config: cfg, images: map[string]imageTimes{}} }

// Run keeps house until ctx ends.
func (h *Housekeeper) Run(ctx context.Context) error {
	var guard sync.WaitGroup
	defer guard.Wait()
	guard.Go(func() { h.guardStorage(ctx) })
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		h.collectImages(ctx, time.Now())
		h.rotateLogs(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// rotateLogs rotates the logs of containers that run. What has ended writes no
// more.
func (h *Housekeeper) rotateLogs(ctx context.Context, now time.Time) {
	if h.Rotation.MaxSize == 0 {
		return
	}
	for _, st := range h.Containers.List("") {
		if st.Log == "" || st.Started.IsZero() || st.Finished || !h.Ours(st) {
			continue
		}
		err := h.Rotation.Rotate(st.Log, now, func() error { return h.Containers.ReopenLog(ctx, st.ID) })
		if ended, gone := h.Containers.Get(st.ID); err != nil && gone == nil && !ended.Finished && ctx.Err() == nil {
			h.Log.Warn("housekeeping: rotate a log", "container", st.Name(), "id", st.ID, "error", err)
		}
	}
}
