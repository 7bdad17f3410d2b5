package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// Load reads the recorded containers. Resume continues them. Records that can't be read are set
// aside and returned as errors.
func (s *Service) Load() []error {
	return s.entries.Load(func(id string, config *runtimeapi.ContainerConfig, rec *record) *base {
		return s.newEntry(id, config, rec).base
	})
}

// Resume continues, after Load, what a restart of huskd or of the host interrupted, and removes
// what no record refers to. It starts to watch the containers that were running: those that have
// ended meanwhile are noticed in the background.
func (s *Service) Resume(ctx context.Context) error {
	swept := s.sweep(ctx)
	for _, b := range s.entries.All() {
		e := b.Object().(*entry)
		e.holdAgain()
		ev := e.Interruption()
		if to, _, _ := containerstate.Table.Next(e.Rec.State, ev); to.Live() {
			e.watch()
			continue
		}
		e.TakeDown(func() containerstate.Event {
			e.explainLoss(ev)
			return ev
		})
	}
	return swept
}

// explainLoss notes how a container ended that is not running after a restart.
func (e *entry) explainLoss(ev containerstate.Event) {
	if e.Rec.State.Down() {
		return
	}
	why := "the host was restarted"
	if ev != containerstate.Reboot {
		why = "huskd was restarted while the container was being created"
		// The caller of Create never got an answer. A caller of Start knows the container.
		e.Rec.Unwanted = e.Rec.State != containerstate.Starting
	}
	if e.Rec.Exit == nil {
		e.Rec.Exit = &oci.Exit{Code: 255, At: time.Now(), Lost: true}
		e.Rec.Reason, e.Rec.Message = "Error", why
	}
}

// sweep ends and removes what is named like a container of huskd's and has no record, because that
// was damaged or set aside. It has to run before Resume can remove records.
func (s *Service) sweep(ctx context.Context) error {
	var errs []error
	for _, base := range []string{s.cfg.State, s.cfg.Root} {
		dirs, _ := filepath.Glob(filepath.Join(base, "containers", "*"))
		for _, dir := range dirs {
			id := filepath.Base(dir)
			if _, err := s.entries.Find(id); err == nil || !pod.ValidID(id) {
				continue
			}
			s.cfg.Log.Warn("container: removing a directory that no record refers to", "path", dir)
			bounded, cancel := context.WithTimeout(ctx, owner.ActionTimeout) // huskd doesn't serve before
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
