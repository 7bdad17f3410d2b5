// Package container owns containers: their writable layers, their bundles,
// their processes in the hands of an OCI runtime, and how they ended.
//
// Each container walks through the table of package lifecycle, one step at a
// time; its record is journaled before each step. A call that changes a
// container runs to its end whatever becomes of the caller: whoever asks again
// joins it and gets the same answer. Containers run on without huskd.
package container

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/chansync"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
)

// Runtime drives the processes. Signal and Delete succeed on what is gone.
type Runtime interface {
	Create(ctx context.Context, c oci.Create) (oci.Process, error)
	Start(ctx context.Context, id string) error
	Signal(ctx context.Context, id string, sig syscall.Signal) error
	KillAll(ctx context.Context, id string) error
	// Wait blocks until the container has ended, also if it ended while huskd
	// was away.
	Wait(ctx context.Context, id string) (oci.Exit, error)
	Delete(ctx context.Context, id string) error
}

// Sessions are the ways into a container.
type Sessions interface {
	Exec(ctx context.Context, e oci.Exec) (code int, err error)
	Attach(ctx context.Context, id string, s oci.Streams) error
	ReopenLog(ctx context.Context, id string) error
}

// Limiter changes what a container may use.
type Limiter interface {
	Update(ctx context.Context, id string, limits *specs.LinuxResources) error
}

// Images are where root file systems come from.
type Images interface {
	// Image finds an image by name, digest or ID.
	Image(ctx context.Context, name string) (Image, error)
	// Hold keeps the image from being removed until release is called.
	Hold(id, holder string) (release func(), err error)
}

// Image is an unpacked image.
type Image struct {
	ID     string
	Name   string
	Lower  []string // directories of its layers, topmost first
	Config ocispec.ImageConfig
}

// Sandboxes are where containers run.
type Sandboxes interface {
	// Sandbox returns the sandbox with that ID if it is ready.
	Sandbox(id string) (Sandbox, error)
	// Pod names the pod of a sandbox, whatever its state.
	Pod(id string) pod.Ref
}

// Sandbox is what a container needs to know of its sandbox.
type Sandbox struct {
	Config     *runtimeapi.PodSandboxConfig
	Handler    string
	Namespaces spec.Namespaces
	Files      spec.Files
	Cgroup     string // parent of its containers' cgroups
	Labels     spec.Labels
}

// Config is what the owner of containers needs.
type Config struct {
	Root, State string // directories for what outlives a boot and what doesn't
	Journal     *journal.Journal
	Runtime     Runtime
	Sessions    Sessions
	Limiter     Limiter
	Images      Images
	Mounts      Mounts // nil is the kernel's overlays
	Sandboxes   Sandboxes
	Hooks       Hooks // nil for none
	Host        host.Facts
	Limits      spec.Limits // of every container
	Checkpoints Checkpoints // nil for none
	// Relabel, if set, gives all that is at a path a label of SELinux.
	Relabel func(path, label string) error
	// Classes, if set, returns the limits of the classes that annotations of a
	// container and of its pod name.
	Classes func(container string, own, pod map[string]string) (*specs.LinuxBlockIO, *specs.LinuxIntelRdt, error)
	// Prewarm, if set, is called as soon as a process is requested, and the function that it
	// returns once the process exists. Neither may block. See cgroup.Prewarmer.
	Prewarm func() (stop func())
	// Changed is told of every change of a container's state. It must not block.
	Changed func(Status)
	// Stepped, if set, is told of every action, and how it failed if it did.
	Stepped func(pod.Step, error)
	Log     *slog.Logger
}

// Status is what is known of a container at one moment. It isn't changed once
// handed out.
type Status struct {
	ID       string
	Sandbox  string
	Config   *runtimeapi.ContainerConfig
	State    containerstate.State
	Handler  string // the runtime handler of its sandbox
	ImageID  string
	Log      string // path; empty if it has none
	Created  time.Time
	Started  time.Time
	Process  oci.Process
	Exit     oci.Exit // when it has ended
	Reason   string   // one word: Completed, Error, OOMKilled …
	Message  string   // one line
	Finished bool     // it has ended; what it left may still be being released
	// Steps are what this huskd did with it, in their order.
	Steps []pod.Step
	// User is who its process runs as; nil before that is known.
	User *specs.User

	record record
}

// Name returns the container's name within its pod.
func (s Status) Name() string { return s.Config.GetMetadata().GetName() }

// Service owns the containers.
type Service struct {
	cfg     Config
	records journal.ConfigTable[record, *runtimeapi.ContainerConfig]

	mu    sync.RWMutex
	boxes map[string]*box
	live  map[string]*box // by key, those that have not ended

	creating chan struct{} // has one for each creation by the runtime

	background chansync.WaitGroup
	closing    context.Context
	close      context.CancelFunc
}

// creations is how many containers the runtime creates at once on each CPU.
// More don't make it faster, and each takes some 10 MB while it lasts.
const creations = 4

// New returns the owner of the containers recorded in the journal, which Load
// reads.
func New(cfg Config) *Service {
	if cfg.Prewarm == nil {
		cfg.Prewarm = func() func() { return func() {} }
	}
	if cfg.Mounts == nil {
		cfg.Mounts = overlays{}
	}
	s := &Service{
		cfg:     cfg,
		records: journal.NewConfigTable[record, *runtimeapi.ContainerConfig](cfg.Journal, "container"),
		boxes:   map[string]*box{},
		live:    map[string]*box{},

		creating: make(chan struct{}, creations*runtime.NumCPU()),
	}
	s.closing, s.close = context.WithCancel(context.Background())
	return s
}

// key is what makes two requests the same.
func key(sandbox string, config *runtimeapi.ContainerConfig) string {
	m := config.GetMetadata()
	return strings.Join([]string{sandbox, m.GetName(), fmt.Sprint(m.GetAttempt())}, "\x00")
}

// Create makes a container in a ready sandbox, to be started by Start. A
// request with the same sandbox, name and attempt as one in flight or living
// joins it and gets the same container. On error nothing is left.
func (s *Service) Create(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig) (Status, error) {
	if config.GetMetadata().GetName() == "" {
		return Status{}, errdefs.ErrInvalidArgument.WithMessage("container config: metadata.name is empty")
	}
	b, fresh, err := s.reserve(sandbox, config)
	if err != nil {
		return Status{}, err
	}
	if fresh {
		stop := s.cfg.Prewarm()
		s.background.Go(func() {
			defer stop()
			b.create(ctx)
		})
	}
	select {
	case <-b.up:
		return b.status(), b.upErr
	case <-ctx.Done():
		return Status{}, fmt.Errorf("container %q: still being created, ask again: %w", b.name(), ctx.Err())
	}
}

// reserve finds the container that is asked for, or takes its place. That is
// there before the sandbox is looked at: whoever stops the sandbox changes its
// state before it lists the containers, so one of the two sees the other.
func (s *Service) reserve(sandbox string, config *runtimeapi.ContainerConfig) (*box, bool, error) {
	k := key(sandbox, config)
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.live[k]; b != nil {
		return b, false, nil
	}
	b := s.newBox(pod.NewID(), sandbox, config)
	b.rec = record{Sandbox: sandbox, State: containerstate.Reserved, Boot: s.cfg.Host.BootID, Created: time.Now()}
	b.publish()
	s.boxes[b.id], s.live[k] = b, b
	return b, true, nil
}

// Start starts a created container. It succeeds on one that runs already.
func (s *Service) Start(ctx context.Context, id string) error {
	b, err := s.get(id)
	if err != nil {
		return err
	}
	return s.await(ctx, b, "started", func() error { return b.start(ctx) })
}

// Stop ends a container: its stop signal, then, after grace, SIGKILL to all
// that is in it. It succeeds on one that has ended or is unknown.
func (s *Service) Stop(ctx context.Context, id string, grace time.Duration) error {
	b, err := s.get(id)
	if err != nil {
		return nil //nolint:nilerr // it is as gone as was asked
	}
	return s.await(ctx, b, "stopped", func() error { return b.stop(ctx, grace) })
}

// Remove removes a container, ending it first if need be. It succeeds on one
// that is unknown.
func (s *Service) Remove(ctx context.Context, id string) error {
	b, err := s.get(id)
	if err != nil {
		return nil //nolint:nilerr // it is as gone as was asked
	}
	return s.await(ctx, b, "removed", func() error {
		if err := b.stop(ctx, 0); err != nil {
			return err
		}
		return b.remove(ctx)
	})
}

// await runs fn, which changes the container, to its end, and waits for that
// as long as the caller does.
func (s *Service) await(ctx context.Context, b *box, what string, fn func() error) error {
	done := make(chan error, 1)
	s.background.Go(func() { done <- fn() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("container %q: still being %s, ask again: %w", b.name(), what, ctx.Err())
	}
}

// StopAll kills every container of the sandbox.
func (s *Service) StopAll(ctx context.Context, sandbox string) error {
	return s.each(sandbox, func(b *box) error { return s.Stop(ctx, b.id, 0) })
}

// RemoveAll removes every container of the sandbox.
func (s *Service) RemoveAll(ctx context.Context, sandbox string) error {
	return s.each(sandbox, func(b *box) error { return s.Remove(ctx, b.id) })
}

func (s *Service) each(sandbox string, fn func(*box) error) error {
	s.mu.RLock()
	var in []*box
	for _, b := range s.boxes {
		if b.sandbox == sandbox {
			in = append(in, b)
		}
	}
	s.mu.RUnlock()
	errs := make(chan error, len(in))
	for _, b := range in {
		go func() { errs <- fn(b) }()
	}
	var first error
	for range in {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Exec runs a program in a running container.
func (s *Service) Exec(ctx context.Context, e oci.Exec) (int, error) {
	if _, err := s.running(e.ID); err != nil {
		return 0, err
	}
	defer s.cfg.Prewarm()()
	return s.cfg.Sessions.Exec(ctx, e)
}

// Attach connects streams to a running container's first process.
func (s *Service) Attach(ctx context.Context, id string, streams oci.Streams) error {
	if _, err := s.running(id); err != nil {
		return err
	}
	return s.cfg.Sessions.Attach(ctx, id, streams)
}

// ReopenLog makes a running container's log be written to its path anew, after
// the file was moved away.
func (s *Service) ReopenLog(ctx context.Context, id string) error {
	if _, err := s.running(id); err != nil {
		return err
	}
	return s.cfg.Sessions.ReopenLog(ctx, id)
}

func (s *Service) running(id string) (Status, error) {
	st, err := s.Get(id)
	if err != nil {
		return Status{}, err
	}
	if st.State != containerstate.Running || st.Finished {
		return Status{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q (%s) is not running", st.Name(), pod.Short(id)))
	}
	return st, nil
}

func (s *Service) get(id string) (*box, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b, ok := s.boxes[id]
	if !ok {
		return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s not found", pod.Short(id)))
	}
	return b, nil
}

// Get returns the container with that ID.
func (s *Service) Get(id string) (Status, error) {
	b, err := s.get(id)
	if err != nil {
		return Status{}, err
	}
	return b.status(), nil
}

// Ended returns a channel that is closed once nothing of the container runs or
// is mounted any more.
func (s *Service) Ended(id string) (<-chan struct{}, error) {
	b, err := s.get(id)
	if err != nil {
		return nil, err
	}
	return b.ended, nil
}

// List returns the containers of a sandbox, or all if it is empty, newest
// first. It never waits for one that is being changed.
func (s *Service) List(sandbox string) []Status {
	s.mu.RLock()
	var list []Status
	for _, b := range s.boxes {
		if sandbox == "" || b.sandbox == sandbox {
			list = append(list, b.status())
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(list, func(a, b Status) int { return b.Created.Compare(a.Created) })
	return list
}

// Close waits for the calls in flight to come to a safe point. Containers run on.
func (s *Service) Close() {
	s.close()
	s.background.Wait()
}

// forget drops a removed container.
func (s *Service) forget(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.boxes, b.id)
	s.retire(b)
}

// free gives the name of an ended container to the next one.
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
