package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// Load reads the recorded sandboxes. Those that were ready in this boot are
// ready again; Resume continues the others. Records that can't be read are set
// aside and returned as errors.
func (s *Service) Load() []error {
	return s.records.Load(func(id string, config *runtimeapi.PodSandboxConfig, rec record) error {
		if !pod.ValidID(id) {
			return errors.New("not a sandbox ID")
		}
		if sandboxstate.Of(rec.Order).To[rec.State] == nil {
			return fmt.Errorf("state %q is unknown", rec.State)
		}
		b := s.newBox(id, config)
		b.rec = rec
		if s.cfg.Labels != nil {
			s.cfg.Labels.Reserve(rec.Labels)
		}
		close(b.up)
		b.publish()
		s.boxes[id] = b
		switch rec.State {
		case sandboxstate.Stopped, sandboxstate.Removing:
			b.once.Do(func() { close(b.down) })
		default:
			s.live[b.key] = b
		}
		return nil
	})
}

// Attachments returns, after Load, what is attached to the network and stays
// so: that of ready sandboxes. What others may have is given back as they are taken down.
func (s *Service) Attachments() []pod.Attachment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []pod.Attachment
	for _, b := range s.boxes {
		if b.rec.State == sandboxstate.Ready && b.rec.Boot == s.cfg.Host.BootID && b.rec.Attachment.Netns != "" {
			a := b.rec.Attachment
			a.RuntimeManaged = b.rec.Boxed
			list = append(list, a)
		}
	}
	return list
}

// Resume takes up, after Load, what a restart of huskd or of the host cut
// short, and sweeps away what no record speaks of. Ready sandboxes are usable
// when it returns; others are taken down in the background.
func (s *Service) Resume() error {
	swept := s.sweep()
	for _, b := range slices.Collect(maps.Values(s.boxes)) { // some are forgotten meanwhile
		ev := sandboxstate.Lost
		if b.rec.Boot != s.cfg.Host.BootID {
			ev = sandboxstate.Reboot
		}
		if b.rec.State == sandboxstate.Ready && ev == sandboxstate.Lost && b.intact() {
			watchInfra(b)
			continue
		}
		b.resumeDown(ev)
	}
	return swept
}

// intact says whether there still is what a ready sandbox needs.
func (b *box) intact() bool {
	if _, err := os.Stat(b.dir()); err != nil {
		return false
	}
	f := b.files()
	for _, path := range []string{f.Net, f.IPC, f.UTS, f.User} {
		if path != "" && !b.s.cfg.Kernel.Pinned(path) {
			return false
		}
	}
	return true
}

// resumeDown continues to take down what isn't ready after a restart.
func (b *box) resumeDown(ev sandboxstate.Event) {
	b.turn.Lock()
	switch {
	case ev == sandboxstate.Reboot:
		b.rec.Reason = "the host was restarted"
		b.rec.Boot = b.s.cfg.Host.BootID
	case b.rec.State == sandboxstate.Ready:
		b.rec.Reason, ev = "its namespaces are gone", sandboxstate.Stop
	case !b.rec.State.Down():
		// The caller of Run is gone and was told nothing.
		b.rec.Reason, b.rec.Unwanted = "huskd was restarted while it was being made", true
	}
	b.s.background.Go(func() {
		err := b.drive(b.s.closing, ev)
		if err == nil && b.rec.Unwanted && b.rec.State == sandboxstate.Stopped {
			err = b.drive(b.s.closing, sandboxstate.Remove)
		}
		b.turn.Unlock()
		if err != nil {
			b.s.cfg.Log.Warn("sandbox: taking it down failed, will be tried again", "sandbox", b.id, "pod", b.ref(), "error", err)
		}
	})
}

// sweep takes down what carries our name and that no record speaks of: records
// that were damaged, or set aside. It runs before any record can go.
func (s *Service) sweep() error {
	known := map[string]bool{}
	for id, b := range s.boxes {
		known[filepath.Join(netns.Dir, s.cfg.Instance.Netns(id))] = true
		known[b.dir()] = true
	}
	var errs []error
	dirs, _ := filepath.Glob(filepath.Join(s.cfg.State, "sandboxes", "*"))
	for _, dir := range dirs {
		if !known[dir] {
			s.cfg.Log.Warn("sandbox: removing what no record speaks of", "path", dir)
			errs = append(errs, s.sweepOne(dir))
		}
	}
	pins, err := s.cfg.Kernel.Pins(s.cfg.Instance.NetnsPrefix())
	errs = append(errs, err)
	for _, path := range pins {
		if !known[path] {
			s.cfg.Log.Warn("sandbox: removing a network namespace that no record speaks of", "path", path)
			errs = append(errs, s.cfg.Kernel.Unpin(path))
		}
	}
	return errors.Join(errs...)
}

// sweepOne takes down the sandbox that had a directory, as far as can be known.
func (s *Service) sweepOne(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), actionTimeout)
	defer cancel()
	if id := filepath.Base(dir); pod.ValidID(id) {
		if err := errors.Join(s.cfg.Containers.RemoveAll(ctx, id), s.cfg.Runtime.Delete(ctx, id)); err != nil {
			return err
		}
		if err := s.cfg.RemoveCgroup(s.cfg.Instance.Cgroup() + "/pod-" + pod.Short(id)); err != nil {
			return err
		}
	}
	err := s.cfg.Kernel.Unpin(filepath.Join(dir, "ipc"), filepath.Join(dir, "uts"), filepath.Join(dir, "user"))
	if err := errors.Join(err, s.cfg.Kernel.Unmount(filepath.Join(dir, "shm"))); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
