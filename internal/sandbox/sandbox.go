// Package sandbox owns pod sandboxes: the namespaces that a pod's containers share. They are pinned
// before any process exists, and attached to the network before any container is created. Unless
// the pod or its runtime handler asks for the other order, that is also before any process exists.
//
// Each sandbox is driven through the table of package sandboxstate, as package owner describes.
package sandbox

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/infra"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// Network attaches sandboxes. Both calls are idempotent by sandbox.
type Network interface {
	// Attach returns an interface for each network, first the one that was asked for. If it fails,
	// nothing is attached, or the detachment is recorded as a debt.
	Attach(ctx context.Context, a pod.Attachment) ([]pod.Attached, error)
	// Detach succeeds when the attachment is gone or recorded as a debt. The netns of a may be gone.
	Detach(ctx context.Context, a pod.Attachment) error
}

// Containers are the containers in a sandbox. Both calls are idempotent.
type Containers interface {
	// StopAll kills every container of the sandbox. None can be created any more.
	StopAll(ctx context.Context, sandbox string) error
	// RemoveAll removes every container of the sandbox.
	RemoveAll(ctx context.Context, sandbox string) error
}

// Infra runs infra processes: see infra.Driver.
type Infra interface {
	Start(ctx context.Context, r infra.Request) (oci.Process, error)
	Wait(ctx context.Context, id, dir string, p oci.Process) (oci.Exit, error)
	Remove(ctx context.Context, id, dir string, p oci.Process) error
}

// Handlers are the runtime handlers, by the names that pods use.
type Handlers interface {
	// Check says why a handler can't be used for a sandbox with or without a user namespace.
	Check(name string, userns bool) error
	// RuntimeSandbox reports whether the handler's runtime makes a sandbox of its own, such as a
	// virtual machine, when the pod's first container is created.
	RuntimeSandbox(name string) bool
	// Order returns when the handler's sandboxes are attached to the network; empty is
	// sandboxstate.BeforeStart.
	Order(name string) sandboxstate.Order
}

// Cgroups are the cgroups of pods.
type Cgroups interface {
	// Parent returns the path of the cgroup that a config's cgroup_parent names.
	Parent(named string) (string, error)
	// Create creates a cgroup of huskd's, unless it exists, and sets its limits.
	Create(path string, limits *runtimeapi.LinuxContainerResources) error
	// List returns all cgroups of huskd's.
	List() ([]string, error)
	// Remove kills what is left in a cgroup of huskd's and removes it, if it exists.
	Remove(path string) error
}

// Config is what the owner of sandboxes needs.
type Config struct {
	Instance   pod.Instance
	State      string // directory for what doesn't outlive a boot
	Journal    *journal.Journal
	Network    Network
	Containers Containers
	Infra      Infra
	Handlers   Handlers
	Cgroups    Cgroups
	Kernel     Kernel // nil is the node's
	Host       host.Facts
	Hooks      Hooks // nil for none
	// Changed, if set, is called on every change of a sandbox's state. It must not block.
	Changed func(Status)
	// Prewarm, if set, is called as soon as a pod that will have an infra process has its cgroup,
	// and the function that it returns once the process exists. Neither may block. See
	// cgroup.Prewarmer.
	Prewarm func() (stop func())
	// Stepped, if set, is called after every action, with its error.
	Stepped func(pod.Step, error)
	Log     *slog.Logger
}

// Status is a snapshot of a sandbox. It must not be modified.
type Status struct {
	ID      string
	Config  *runtimeapi.PodSandboxConfig
	Handler string
	State   sandboxstate.State
	Created time.Time
	// Attachment is what was asked of the network. Its Netns is empty for a sandbox in the host's
	// network namespace.
	Attachment pod.Attachment
	Attached   []pod.Attached
	Infra      *oci.Process
	// Labels are empty without SELinux.
	Labels spec.Labels
	// Reason says in one line why the sandbox isn't ready.
	Reason string
	// Displaced says that an address of the sandbox isn't this node's any more.
	Displaced pod.Displacement
	// Steps are what this huskd has done with the sandbox, in order.
	Steps  []pod.Step
	cgroup string // the name of the cgroup that is huskd's
}

// HostNetwork reports whether the sandbox is in the host's network namespace.
func (s Status) HostNetwork() bool { return s.Attachment.Netns == "" }

// Addresses returns the pod's addresses: those of its first interface, as in Kubernetes.
func (s Status) Addresses() []netip.Prefix {
	if len(s.Attached) == 0 {
		return nil
	}
	return s.Attached[0].Addresses
}

// Ref names the sandbox's pod.
func (s Status) Ref() pod.Ref {
	m := s.Config.GetMetadata()
	return pod.Ref{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()}
}

// Service owns the sandboxes.
type Service struct {
	cfg     Config
	entries *entries
}

// New returns the owner of the sandboxes recorded in the journal, which Load reads.
func New(cfg Config) *Service {
	if cfg.Kernel == nil {
		cfg.Kernel = node{}
	}
	if cfg.Prewarm == nil {
		cfg.Prewarm = func() func() { return func() {} }
	}
	return &Service{cfg, owner.New[sandboxstate.State, *record, *runtimeapi.PodSandboxConfig](owner.Config[Status]{
		Kind: "sandbox", Journal: cfg.Journal, BootID: cfg.Host.BootID, Changed: cfg.Changed, Stepped: cfg.Stepped,
	})}
}

// key is what makes two requests the same: CRI's metadata, all four parts.
func key(config *runtimeapi.PodSandboxConfig) string {
	m := config.GetMetadata()
	return strings.Join([]string{m.GetNamespace(), m.GetName(), m.GetUid(), fmt.Sprint(m.GetAttempt())}, "\x00")
}

// Run creates a sandbox and returns once it is ready. If a sandbox with the same metadata is being
// created or is ready, Run returns that one. On error nothing is left.
func (s *Service) Run(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (Status, error) {
	if err := validate(config); err != nil {
		return Status{}, err
	}
	if parent := config.GetLinux().GetCgroupParent(); parent != "" {
		if _, err := s.cfg.Cgroups.Parent(parent); err != nil {
			return Status{}, bad("linux.cgroup_parent: %v", err)
		}
	}
	if err := s.cfg.Handlers.Check(handler, userNamespace(config) != nil); err != nil {
		return Status{}, fmt.Errorf("sandbox of pod %s: %w", Status{Config: config}.Ref(), err)
	}
	order, err := orderOf(config, s.cfg.Handlers.Order(handler))
	if err != nil {
		return Status{}, err
	}
	e, fresh, err := s.reserve(ctx, config, handler, order)
	if err != nil {
		return Status{}, err
	}
	if fresh {
		e := e.Object().(*entry)
		s.entries.Go(func() { e.Create(ctx, e.watchInfra) })
	}
	return e.AwaitCreated(ctx)
}

// reserve returns the sandbox that config asks for, or adds one. It waits for a sandbox of the same
// pod that is still on its way down.
func (s *Service) reserve(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string, order sandboxstate.Order) (*base, bool, error) {
	for {
		e, fresh := s.entries.Join(key(config), func(id string) *base {
			e := s.newEntry(id, config, &record{Handler: handler, RuntimeSandbox: s.cfg.Handlers.RuntimeSandbox(handler)})
			e.Rec.State, e.Rec.Boot, e.Rec.Created = sandboxstate.Reserved, s.cfg.Host.BootID, time.Now()
			e.Rec.Attachment, e.Rec.CgroupOfUID = e.attachment(), true
			if e.Rec.Attachment.Netns != "" { // a sandbox in the host's network isn't attached
				e.Rec.Order = order
			}
			return e.base
		})
		if fresh || !e.Status().State.Down() {
			return e, fresh, nil
		}
		select {
		case <-e.Ended():
		case <-ctx.Done():
			return nil, false, fmt.Errorf("sandbox %s of the same pod is still being stopped: %w", pod.Short(e.ID), ctx.Err())
		}
	}
}

// Stop ends everything in the sandbox and detaches it from its networks. It succeeds for a sandbox
// that is stopped or unknown.
func (s *Service) Stop(ctx context.Context, id string) error {
	e, err := s.find(id)
	if err != nil {
		return nil //nolint:nilerr // an unknown sandbox is stopped
	}
	return e.Change(ctx, "stopped", func() error { return e.stop(ctx, "stopped") })
}

// Remove stops the sandbox, if it isn't stopped, and removes it with its containers. It succeeds
// for a sandbox that is unknown.
func (s *Service) Remove(ctx context.Context, id string) error {
	e, err := s.find(id)
	if err != nil {
		return nil //nolint:nilerr // an unknown sandbox is removed
	}
	return e.Change(ctx, "removed", func() error {
		if err := e.stop(ctx, "stopped"); err != nil {
			return err
		}
		return e.Remove(ctx)
	})
}

// Displace notes whether an address of a ready sandbox isn't this node's any more. It doesn't wait:
// it returns false if the sandbox is being changed.
func (s *Service) Displace(id string, d pod.Displacement) bool {
	e, err := s.find(id)
	if err != nil || e.Status().Displaced == d || e.Status().State != sandboxstate.Ready {
		return true
	}
	if !e.Mu.TryLock() {
		return false
	}
	defer e.Mu.Unlock()
	e.Rec.Displaced, e.Rec.replace = d.Message, d.Replace
	if err := e.Save(); err != nil {
		e.Log().Warn("sandbox: can't write the journal", "error", err)
	}
	return true
}

// Get returns the sandbox with that ID.
func (s *Service) Get(id string) (Status, error) { return s.entries.Get(id) }

// List returns all sandboxes, newest first. It never waits for one that is being changed.
func (s *Service) List() []Status { return s.entries.List() }

// Select returns the sandboxes for which keep returns true, newest first.
func (s *Service) Select(keep func(*Status) bool) []Status { return s.entries.Select(keep) }

// Views yields all sandboxes, in no order. They must not be changed.
func (s *Service) Views() iter.Seq[*Status] { return s.entries.Views() }

// Close waits until the calls in flight have come to a safe point. Sandboxes run on.
func (s *Service) Close() { s.entries.Close() }
