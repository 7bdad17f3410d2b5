package sandbox

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/selinux"
	"github.com/huskd/husk/internal/userns"
)

// Load reads the recorded sandboxes. Those that were ready in this boot are ready again; Resume
// continues the others. Records that can't be read are set aside and returned as errors.
func (s *Service) Load() []error {
	bad := s.entries.Load(func(id string, config *runtimeapi.PodSandboxConfig, rec *record) *base {
		return s.newEntry(id, config, rec).base
	})
	for _, e := range s.entries.All() {
		selinux.Policy{}.Reserve(e.Rec.Labels)
	}
	return bad
}

// Attachments returns, after Load, the attachments of ready sandboxes. Those of other sandboxes are
// undone as the sandboxes are taken down.
func (s *Service) Attachments() []pod.Attachment {
	var list []pod.Attachment
	for _, b := range s.entries.All() {
		e := b.Object().(*entry)
		if e.Rec.State == sandboxstate.Ready && e.Rec.Boot == s.cfg.Host.BootID && e.Rec.Attachment.Netns != "" {
			list = append(list, e.View().Attachment)
		}
	}
	return list
}

// Resume continues, after Load, what a restart of huskd or of the host interrupted, and removes
// what no record refers to. Ready sandboxes are usable when it returns. Others are taken down in
// the background.
func (s *Service) Resume() error {
	swept := s.sweep()
	for _, b := range s.entries.All() {
		e := b.Object().(*entry)
		if e.Interruption() == sandboxstate.Lost && e.Rec.State == sandboxstate.Ready && e.intact() {
			// In the directory of an older version everybody could find their way, so it had no group.
			_, gid := idsOf(e.Config).Root()
			swept = errors.Join(swept, userns.MakeDir(e.dir(), gid))
			e.watchInfra()
		} else {
			e.TakeDown(e.explainLoss)
		}
	}
	return swept
}

// intact reports whether a ready sandbox still has its directory and namespaces.
func (e *entry) intact() bool {
	if _, err := os.Stat(e.dir()); err != nil {
		return false
	}
	f := e.files()
	for _, path := range []string{f.Net, f.IPC, f.UTS, f.User} {
		if path != "" && !e.s.cfg.Kernel.Pinned(path) {
			return false
		}
	}
	return true
}

// explainLoss notes why a sandbox is not ready after a restart. It returns the event to apply.
func (e *entry) explainLoss() sandboxstate.Event {
	ev := e.Interruption()
	switch {
	case ev == sandboxstate.Reboot:
		e.Rec.Reason = "the host was restarted"
	case e.Rec.State == sandboxstate.Ready:
		e.Rec.Reason, ev = "its namespaces are gone", sandboxstate.Stop
	case !e.Rec.State.Down(): // the caller of Run never got an answer
		e.Rec.Reason, e.Rec.Unwanted = "huskd was restarted while the sandbox was being created", true
	}
	return ev
}

// sweep takes down what is named like a sandbox of huskd's and has no record, because that was
// damaged or set aside. It has to run before Resume can remove records.
func (s *Service) sweep() error {
	known := map[string]bool{}
	for _, b := range s.entries.All() {
		known[filepath.Join(netns.Dir, s.cfg.Instance.Netns(b.ID))] = true
		known[filepath.Join(s.cfg.State, "sandboxes", b.ID)] = true
	}
	var errs []error
	dirs, _ := filepath.Glob(filepath.Join(s.cfg.State, "sandboxes", "*"))
	for _, dir := range dirs {
		if !known[dir] {
			s.cfg.Log.Warn("sandbox: removing a directory that no record refers to", "path", dir)
			errs = append(errs, s.sweepOne(dir))
		}
	}
	pins, err := s.cfg.Kernel.Pins(s.cfg.Instance.NetnsPrefix())
	errs = append(errs, err)
	for _, path := range pins {
		if !known[path] {
			s.cfg.Log.Warn("sandbox: removing a network namespace that no record refers to", "path", path)
			errs = append(errs, s.cfg.Kernel.Unpin(path))
		}
	}
	return errors.Join(append(errs, s.sweepCgroups())...)
}

// sweepCgroups removes the cgroups of pods that no record refers to, and kills what is in them. The
// QoS class, of which only the record tells, is a part of the path.
func (s *Service) sweepCgroups() error {
	known := map[string]bool{}
	for _, b := range s.entries.All() {
		known[s.Cgroup(b.Status())] = true
	}
	root := s.cfg.Instance.Cgroup()
	parents := []string{root}
	for _, class := range pod.QOSClasses {
		parents = append(parents, path.Join(root, class))
	}
	all, err := s.cfg.Cgroups.List()
	errs := []error{err}
	for _, cgroup := range all {
		if !cgroupNames.MatchString(path.Base(cgroup)) || known[cgroup] || !slices.Contains(parents, path.Dir(cgroup)) {
			continue
		}
		s.cfg.Log.Warn("sandbox: removing a cgroup that no record refers to", "cgroup", cgroup)
		errs = append(errs, s.cfg.Cgroups.Remove(cgroup))
	}
	return errors.Join(errs...)
}

// sweepOne takes down the sandbox that the directory belongs to, as far as its ID tells.
func (s *Service) sweepOne(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), owner.ActionTimeout)
	defer cancel()
	if id := filepath.Base(dir); pod.ValidID(id) {
		if err := errors.Join(s.cfg.Containers.RemoveAll(ctx, id), s.cfg.Infra.Remove(ctx, id, infraDir(dir), oci.Process{})); err != nil {
			return err
		}
	}
	return s.removeDir(dir)
}
