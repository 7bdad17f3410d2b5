// Package sandbox owns pod sandboxes: the namespaces that a pod's containers
// share, pinned before any process exists, and attached to the network before
// any container is created and, unless asked otherwise, any process exists.
//
// Each sandbox walks through the table of package lifecycle, one step at a
// time; its record is journaled before each step. A call that changes a
// sandbox runs to its end whatever becomes of the caller: whoever asks again
// joins it and gets the same answer.
package sandbox

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/chansync"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// Network attaches sandboxes. Both calls are idempotent by sandbox.
type Network interface {
	// Attach answers with an interface of each network, the first of which is
	// the one that was asked for. If it fails, nothing is attached, or that is
	// recorded as owed.
	Attach(ctx context.Context, a pod.Attachment) ([]pod.Attached, error)
	// Detach succeeds when the attachment is gone or recorded as owed. The
	// netns of a may be gone.
	Detach(ctx context.Context, a pod.Attachment) error
}

// Containers are the containers in a sandbox. Both calls are idempotent.
type Containers interface {
	// StopAll kills every container of the sandbox; none can be created any more.
	StopAll(ctx context.Context, sandbox string) error
	// RemoveAll removes every container of the sandbox.
	RemoveAll(ctx context.Context, sandbox string) error
}

// Runtime runs the infra process of a sandbox whose containers share a PID
// namespace. All calls are idempotent but Create and Start.
type Runtime interface {
	Create(ctx context.Context, c oci.Create) (oci.Process, error)
	Start(ctx context.Context, id string) error
	Wait(ctx context.Context, id string) (oci.Exit, error)
	Delete(ctx context.Context, id string) error
}

// Labeler gives pods the labels of SELinux, which are empty where that isn't
// enabled.
type Labeler interface {
	// Allocate returns labels with the parts that o has, and otherwise a level of
	// their own until Release.
	Allocate(o *runtimeapi.SELinuxOption) (spec.Labels, error)
	// Reserve keeps the level of labels of before a restart from being given away.
	Reserve(spec.Labels)
	Release(spec.Labels)
}

// Config is what the owner of sandboxes needs.
type Config struct {
	Instance   pod.Instance
	State      string // directory for what doesn't outlive a boot
	Journal    *journal.Journal
	Network    Network
	Containers Containers
	Runtime    Runtime
	Kernel     Kernel // nil is the node's
	Host       host.Facts
	// CheckHandler says why a runtime handler can't be used, for a sandbox with
	// a user namespace or one without.
	CheckHandler func(name string, userns bool) error
	// Boxed says that a handler's containers run in a sandbox of the runtime's
	// own, which a first container makes; nil for none.
	Boxed  func(handler string) bool
	Labels Labeler // nil for none
	// CgroupParent, if set, returns the cgroup that a cgroup_parent names.
	CgroupParent func(named string) (string, error)
	// CreateCgroup makes a cgroup of ours, which may be there, and sets its limits.
	CreateCgroup func(path string, limits *runtimeapi.LinuxContainerResources) error
	// RemoveCgroup removes an empty or left-over cgroup of ours.
	RemoveCgroup func(path string) error
	// Orders are those of runtime handlers by their names.
	Orders map[string]sandboxstate.Order
	// WritePause writes the infra program to path.
	WritePause func(path string) error
	Hooks      Hooks // nil for none
	// Changed is told of every change of a sandbox's state. It must not block.
	Changed func(Status)
	// Stepped, if set, is told of every action, and how it failed if it did.
	Stepped func(pod.Step, error)
	Log     *slog.Logger
}

// Status is what is known of a sandbox at one moment. It isn't changed once
// handed out.
type Status struct {
	ID      string
	Config  *runtimeapi.PodSandboxConfig
	Handler string
	State   sandboxstate.State
	Created time.Time
	// Attachment is what was asked of the network; its Netns is empty for a
	// sandbox in the host's network namespace.
	Attachment pod.Attachment
	Attached   []pod.Attached
	Infra      *oci.Process
	// Labels are empty without SELinux.
	Labels spec.Labels
	// Reason says in one line why it isn't ready.
	Reason string
	// Steps are what this huskd did with it, in their order.
	Steps []pod.Step
}

// HostNetwork says whether it is in the host's network namespace.
func (s Status) HostNetwork() bool { return s.Attachment.Netns == "" }

// Addresses are the pod's: those of its first interface, as in Kubernetes.
func (s Status) Addresses() []netip.Prefix {
	if len(s.Attached) == 0 {
		return nil
	}
	return s.Attached[0].Addresses
}

// Ref names its pod.
func (s Status) Ref() pod.Ref {
	m := s.Config.GetMetadata()
	return pod.Ref{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()}
}

// Service owns the sandboxes.
type Service struct {
	cfg     Config
	records journal.ConfigTable[record, *runtimeapi.PodSandboxConfig]

	mu    sync.RWMutex
	boxes map[string]*box
	live  map[string]*box // by key, those that aren't on their way down

	background chansync.WaitGroup
	closing    context.Context
	close      context.CancelFunc
}

// New returns the owner of the sandboxes recorded in the journal, which Load
// reads.
func New(cfg Config) *Service {
	if cfg.Kernel == nil {
		cfg.Kernel = node{}
	}
	s := &Service{
		cfg:     cfg,
		records: journal.NewConfigTable[record, *runtimeapi.PodSandboxConfig](cfg.Journal, "sandbox"),
		boxes:   map[string]*box{},
		live:    map[string]*box{},
	}
	s.closing, s.close = context.WithCancel(context.Background())
	return s
}

// key is what makes two requests the same: CRI's metadata, all four parts.
func key(config *runtimeapi.PodSandboxConfig) string {
	m := config.GetMetadata()
	return strings.Join([]string{m.GetNamespace(), m.GetName(), m.GetUid(), fmt.Sprint(m.GetAttempt())}, "\x00")
}

// Run makes a sandbox and returns once it is ready. A request with the same
// metadata as one in flight or ready joins it and gets the same sandbox. On
// error nothing is left.
func (s *Service) Run(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (Status, error) {
	if err := validate(config); err != nil {
		return Status{}, err
	}
	if parent := config.GetLinux().GetCgroupParent(); parent != "" && s.cfg.CgroupParent != nil {
		if _, err := s.cfg.CgroupParent(parent); err != nil {
			return Status{}, bad("linux.cgroup_parent: %v", err)
		}
	}
	if err := s.cfg.CheckHandler(handler, userNamespace(config) != nil); err != nil {
		return Status{}, fmt.Errorf("sandbox of pod %s: %w", Status{Config: config}.Ref(), err)
	}
	order, err := orderOf(config, s.cfg.Orders[handler])
	if err != nil {
		return Status{}, err
	}
	b, fresh, err := s.reserve(ctx, config, handler, order)
	if err != nil {
		return Status{}, err
	}
	if fresh {
		s.background.Go(func() { b.run(ctx) })
	}
	select {
	case <-b.up:
		return b.status(), b.upErr
	case <-ctx.Done():
		return Status{}, fmt.Errorf("sandbox of pod %s: still being made, ask again: %w", b.status().Ref(), ctx.Err())
	}
}

// reserve finds the sandbox that config asks for, or takes its place. One that
// is on its way down under the same name is waited for.
func (s *Service) reserve(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string, order sandboxstate.Order) (*box, bool, error) {
	k := key(config)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		b := s.live[k]
		if b == nil {
			break
		}
		if st := b.status(); !st.State.Down() {
			return b, false, nil
		}
		s.mu.Unlock()
		var err error
		select {
		case <-b.down:
		case <-ctx.Done():
			err = fmt.Errorf("sandbox %s of the same pod is still being stopped: %w", pod.Short(b.id), ctx.Err())
		}
		s.mu.Lock()
		if err != nil {
			return nil, false, err
		}
	}
	b := s.newBox(s.newID(), config)
	b.rec = record{State: sandboxstate.Reserved, Boot: s.cfg.Host.BootID, Created: time.Now(), Handler: handler}
	b.rec.Boxed = s.cfg.Boxed != nil && s.cfg.Boxed(handler)
	b.rec.Attachment = b.attachment()
	if b.rec.Attachment.Netns != "" { // in the host's network there is nothing to wait for
		b.rec.Order = order
	}
	b.publish()
	s.boxes[b.id], s.live[k] = b, b
	return b, true, nil
}

// newID returns an ID whose derived names no sandbox has. The caller has s.mu.
func (s *Service) newID() string {
	for {
		id := pod.NewID()
		clash := false
		for other := range s.boxes {
			clash = clash || pod.Clash(id, other)
		}
		if !clash {
			return id
		}
	}
}

// Stop ends everything in the sandbox and gives back its network. It succeeds
// on one that is stopped or unknown.
func (s *Service) Stop(ctx context.Context, id string) error {
	return s.change(ctx, id, func(b *box) error { return b.stop(ctx, "stopped") })
}

// Remove stops the sandbox if need be and removes it with its containers. It
// succeeds on one that is unknown.
func (s *Service) Remove(ctx context.Context, id string) error {
	return s.change(ctx, id, func(b *box) error {
		if err := b.stop(ctx, "stopped"); err != nil {
			return err
		}
		return b.remove(ctx)
	})
}

// change runs fn, which changes the sandbox, to its end, and waits for that as
// long as the caller does.
func (s *Service) change(ctx context.Context, id string, fn func(*box) error) error {
	b, ok := s.find(id)
	if !ok {
		return nil
	}
	done := make(chan error, 1)
	s.background.Go(func() { done <- fn(b) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s: still being stopped, ask again: %w", pod.Short(id), ctx.Err())
	}
}

func (s *Service) find(id string) (*box, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b, ok := s.boxes[id]
	return b, ok
}

// Get returns the sandbox with that ID.
func (s *Service) Get(id string) (Status, error) {
	b, ok := s.find(id)
	if !ok {
		return Status{}, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("sandbox %s not found", pod.Short(id)))
	}
	return b.status(), nil
}

// List returns all sandboxes, newest first. It never waits for one that is
// being changed.
func (s *Service) List() []Status {
	s.mu.RLock()
	list := make([]Status, 0, len(s.boxes))
	for _, b := range s.boxes {
		list = append(list, b.status())
	}
	s.mu.RUnlock()
	slices.SortFunc(list, func(a, b Status) int { return b.Created.Compare(a.Created) })
	return list
}

// Close waits for the calls in flight to come to a safe point. Sandboxes run on.
func (s *Service) Close() {
	s.close()
	s.background.Wait()
}

// forget drops a removed sandbox.
func (s *Service) forget(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.boxes, b.id)
	s.retire(b)
}

// free gives the name of a stopped sandbox to the next one.
func (s *Service) free(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire(b)
}

func (s *Service) retire(b *box) {
	if s.live[b.key] == b {
		delete(s.live, b.key)
	}
}
