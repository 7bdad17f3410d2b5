// Package housekeeping keeps the disk from filling up. It rotates the logs of the agent's
// containers, removes unused images when the disk is nearly full, removes the files of pods that no
// longer exist, and evicts pods: those that exceed their disk limits, and others when the node runs
// short of memory, disk space or process IDs.
package housekeeping

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/logs"
)

// interval is the time between two passes over logs and images. A pass takes one system call for
// the disk.
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

// maxStarts is how many started containers may wait to have their logs watched. If there are more,
// all containers are looked at.
const maxStarts = 64

// Housekeeper does the housekeeping.
type Housekeeper struct {
	Config

	started chan container.Status // receives containers that were started
	missed  atomic.Bool           // more were started than started has room for

	mu         sync.Mutex            // guards the fields below
	images     map[string]imageTimes // by image ID
	warnedFull bool                  // a warning was logged that the disk stays full
	rotated    map[string]bool       // logs that were rotated since the last pass, by path
}

// New returns a Housekeeper.
func New(cfg Config) *Housekeeper {
	return &Housekeeper{Config: cfg, images: map[string]imageTimes{}, started: make(chan container.Status, maxStarts), rotated: map[string]bool{}}
}

// Run does the housekeeping until ctx ends.
func (h *Housekeeper) Run(ctx context.Context) error {
	var guard sync.WaitGroup
	defer guard.Wait()
	guard.Go(func() { h.guardStorage(ctx) })
	guard.Go(func() { h.rotateLogs(ctx) })
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		h.collectImages(ctx, time.Now())
		h.compressLogs()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
