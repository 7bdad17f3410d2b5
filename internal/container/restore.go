package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// Load reads the recorded containers. Resume continues them. Records that
// can't be read are set aside and returned as errors.
func (s *Service) Load() []error {
	return s.records.Load(func(id string, config *runtimeapi.ContainerConfig, rec record) error {
		if !pod.ValidID(id) {
			return errors.New("not a container ID")
		}
		if containerstate.Table.To[rec.State] == nil {
			return fmt.Errorf("state %q is unknown", rec.State)
		}
		b := s.newBox(id, rec.Sandbox, config)
		b.rec = rec
		close(b.up)
		b.publish()
		s.boxes[id] = b
		switch rec.State {
		case containerstate.Exited, containerstate.Removing:
			b.once.Do(func() { close(b.ended) })
		default:
			s.live[b.key] = b
		}
		return nil
	})
}

// Resume takes up, after Load, what a restart of huskd or of the host cut
// short. Containers that ran and run are watched again when it returns, those
// that ended meanwhile are found out in the background, and what no record
// speaks of is swept away.
func (s *Service) Resume(ctx context.Context) error {
	swept := s.sweep(ctx)
	for _, b := range slices.Collect(maps.Values(s.boxes)) { // some are forgotten meanwhile
		b.holdAgain(ctx)
		ev := containerstate.Lost
		if b.rec.Boot != s.cfg.Host.BootID {
			ev = containerstate.Reboot
		}
		to, _, _ := containerstate.Table.Next(b.rec.State, ev)
		if to.Live() {
			b.watch()
			continue
		}
		b.resumeDown(ev)
	}
	return swept
}

// holdAgain keeps the container's image, as before the restart.
func (b *box) holdAgain(ctx context.Context) {
	if b.rec.ImageID == "" || b.rec.State == containerstate.Removing {
		return
	}
	for _, id := range append([]string{b.rec.ImageID}, slices.Collect(maps.Values(b.rec.Volumes))...) {
		_ = b.hold(id, "container "+b.name()) // one that is gone can't be kept
	}
}

// resumeDown continues to take down what doesn't run after a restart.
func (b *box) resumeDown(ev containerstate.Event) {
	b.turn.Lock()
	switch {
	case b.rec.State.Down():
	case ev == containerstate.Reboot:
		b.rec.Boot = b.s.cfg.Host.BootID
		b.lost("the host was restarted")
	default:
		b.lost("huskd was restarted while it was being made")
		// Whoever asked for its creation was told nothing; whoever asked for
		// its start knows it.
		b.rec.Unwanted = b.rec.State != containerstate.Starting
	}
	b.s.background.Go(func() {
		err := b.drive(b.s.closing, ev)
		if err == nil && b.rec.Unwanted && b.rec.State == containerstate.Exited {
			err = b.drive(b.s.closing, containerstate.Destroy)
		}
		b.turn.Unlock()
		if err != nil {
			teller{b}.log().Warn("container: releasing it failed, will be tried again", "error", err)
		}
	})
}

// lost records an end that nobody saw.
func (b *box) lost(why string) {
	if b.rec.Exit == nil {
		b.rec.Exit = &oci.Exit{Code: 255, At: time.Now(), Lost: true}
		b.rec.Reason, b.rec.Message = "Error", why
	}
}

// sweep ends and removes what carries the name of a container that no record
// speaks of: records that were damaged, or set aside. It runs before any record
// can go.
func (s *Service) sweep(ctx context.Context) error {
	var errs []error
	for _, base := range []string{s.cfg.State, s.cfg.Root} {
		dirs, _ := filepath.Glob(filepath.Join(base, "containers", "*"))
		for _, dir := range dirs {
			id := filepath.Base(dir)
			if s.boxes[id] != nil || !pod.ValidID(id) {
				continue
			}
			s.cfg.Log.Warn("container: removing what no record speaks of", "path", dir)
			bounded, cancel := context.WithTimeout(ctx, actionTimeout) // huskd can't serve before
			err := s.cfg.Runtime.Delete(bounded, id)
			cancel()
			if err == nil && base == s.cfg.Root {
				err = s.unmountAll(dir)
			}
			if err == nil {
				err = os.RemoveAll(dir)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
