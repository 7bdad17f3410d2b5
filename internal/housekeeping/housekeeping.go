// Package housekeeping keeps the disk from filling up. It rotates the logs of the agent's
// containers, removes unused images when the disk is nearly full, removes the files of pods that no
// longer exist, and evicts pods: those that exceed their disk limits, and others when the node runs
// short of memory, disk space or process IDs.
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

// interval is the time between two passes over logs and images. A pass takes one system call for
// each log and one for the disk.
const interval = 5 * time.Second

// Config configures a Housekeeper.
type Config struct {
	Containers *container.Service
	// Ours reports whether a container belongs to the agent. The logs of other containers are
	// rotated by the client that created them.
	Ours     func(container.Status) bool
	Rotation logs.Rotation
	Images   *image.Store
	Disk     Disk
	Storage  Storage
	Log      *slog.Logger
}

// Housekeeper does the housekeeping.
type Housekeeper struct {
	Config

	mu         sync.Mutex            // guards the fields below
	images     map[string]imageTimes // by image ID
	warnedFull bool                  // a warning was logged that the disk stays full
}

// New returns a Housekeeper.
func New(cfg Config) *Housekeeper { return &Housekeeper{Config: cfg, images: map[string]imageTimes{}} }

// Run does the housekeeping until ctx ends.
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

// rotateLogs rotates the logs of running containers.
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
			h.Log.Warn("housekeeping: log not rotated", "container", st.Name(), "id", st.ID, "error", err)
		}
	}
}
