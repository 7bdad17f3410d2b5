// Package container owns containers: their writable layers, their bundles, the processes that an
// OCI runtime runs for them, and how they ended.
//
// Each container is driven through the table of package containerstate, as package owner describes.
// Containers run on without huskd.
package container

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/resourceclass"
)

// Runtime drives the processes. Signal and Delete succeed for a container that is gone.
type Runtime interface {
	Create(ctx context.Context, c oci.Create) (oci.Process, error)
	Start(ctx context.Context, id string) error
	Signal(ctx context.Context, id string, sig syscall.Signal) error
	KillAll(ctx context.Context, id string) error
	// Wait blocks until the container has ended. That may have been while huskd was away.
	Wait(ctx context.Context, id string) (oci.Exit, error)
	Delete(ctx context.Context, id string) error
}

// Sessions acts on running containers.
type Sessions interface {
	Exec(ctx context.Context, e oci.Exec) (code int, err error)
	Attach(ctx context.Context, id string, s oci.Streams) error
	ReopenLog(ctx context.Context, id string) error
	// Update changes the limits of a container.
	Update(ctx context.Context, id string, limits *specs.LinuxResources) error
}

// Checkpointer makes checkpoints of processes with CRIU.
type Checkpointer interface {
	// Checkpoint writes the processes of a container into a directory. It calls whileStopped while
	// they can't run.
	Checkpoint(ctx context.Context, id, into string, whileStopped func() error) error
}

// Images provides root file systems.
type Images interface {
	// Image finds an image by name, digest or ID.
	Image(ctx context.Context, name string) (Image, error)
	// Hold prevents the removal of the image until release is called. holder names the user of the
	// image in errors.
	Hold(id, holder string) (release func(), err error)
}

// Image is an unpacked image.
type Image struct {
	ID     string
	Name   string
	Lower  []string // directories of its layers, topmost first
	Config ocispec.ImageConfig
}

// Sandboxes are the sandboxes that containers run in.
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
	Root, State  string // directories for what outlives a boot and what doesn't
	Journal      *journal.Journal
	Runtime      Runtime
	Sessions     Sessions
	Checkpointer Checkpointer
	Images       Images
	Mounts       Mounts // nil is the kernel's overlays
	Sandboxes    Sandboxes
	Hooks        Hooks // nil for none
	Host         host.Facts
	Limits       spec.Limits // of every container
	// DefaultCapabilities ("CAP_CHOWN", …) are those of a container that requests no others.
	DefaultCapabilities []string
	// RestoreCheckpoints allows clients to create containers from checkpoints. The processes get the
	// privileges that they had, whatever those of the pod are.
	RestoreCheckpoints bool
	// ResourceClasses, if set, knows the classes of block I/O and RDT that annotations name.
	ResourceClasses *resourceclass.Classes
	// Prewarm, if set, is called as soon as a process is requested, and the function that it
	// returns once the process exists. Neither may block. See cgroup.Prewarmer.
	Prewarm func() (stop func())
	// Changed, if set, is called on every change of a container's state. It must not block.
	Changed func(Status)
	// Stepped, if set, is called after every action, with its error.
	Stepped func(pod.Step, error)
	Log     *slog.Logger
}

// Status is a snapshot of a container. It must not be modified.
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
	Finished bool     // it has ended; its resources may not be released yet
	// Steps are what this huskd has done with the container, in order.
	Steps []pod.Step
	// User is the user that its process runs as; nil before that is known.
	User *specs.User

	record record
}

// Name returns the container's name within its pod.
func (s Status) Name() string { return s.Config.GetMetadata().GetName() }

// Service owns the containers.
type Service struct {
	cfg      Config
	entries  *entries
	creating chan struct{} // holds an element for each creation by the runtime
}

// creations is how many containers the runtime creates at once on each CPU. More don't make it
// faster, and each takes some 10 MB while it lasts.
const creations = 4

// New returns the owner of the containers recorded in the journal, which Load reads.
func New(cfg Config) *Service {
	if cfg.Prewarm == nil {
		cfg.Prewarm = func() func() { return func() {} }
	}
	if cfg.Mounts == nil {
		cfg.Mounts = overlays{}
	}
	return &Service{
		cfg: cfg,
		entries: owner.New[containerstate.State, *record, *runtimeapi.ContainerConfig](owner.Config[Status]{
			Kind: "container", Journal: cfg.Journal, BootID: cfg.Host.BootID, Changed: cfg.Changed, Stepped: cfg.Stepped,
		}),
		creating: make(chan struct{}, creations*runtime.NumCPU()),
	}
}

// key is what makes two requests the same.
func key(sandbox string, config *runtimeapi.ContainerConfig) string {
	m := config.GetMetadata()
	return strings.Join([]string{sandbox, m.GetName(), fmt.Sprint(m.GetAttempt())}, "\x00")
}

// Create creates a container in a ready sandbox. Start starts it. If a container with the same
// sandbox, name and attempt is being created or has not ended, Create returns that one. On error
// nothing is left.
func (s *Service) Create(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig) (Status, error) {
	if config.GetMetadata().GetName() == "" {
		return Status{}, errdefs.ErrInvalidArgument.WithMessage("container config: metadata.name is empty")
	}
	// The entry is added before the sandbox's state is read. Stopping a sandbox changes its state
	// before it lists the containers, so one of the two sees the other.
	b, fresh := s.entries.Join(key(sandbox, config), func(id string) *base {
		e := s.newEntry(id, config, &record{Sandbox: sandbox})
		e.Rec.State, e.Rec.Boot, e.Rec.Created = containerstate.Reserved, s.cfg.Host.BootID, time.Now()
		return e.base
	})
	if fresh {
		stop := s.cfg.Prewarm()
		s.entries.Go(func() {
			defer stop()
			e := b.Object().(*entry)
			e.Create(ctx, func() {
				_ = e.notify(ctx, AfterCreate)
				e.watch()
			})
		})
	}
	return b.AwaitCreated(ctx)
}

// Start starts a created container. It succeeds for one that runs already.
func (s *Service) Start(ctx context.Context, id string) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	return e.Change(ctx, "started", func() error { return e.start(ctx) })
}

// Stop ends a container: it sends the stop signal and, after grace, SIGKILL to all processes. It
// succeeds for a container that has ended or is unknown.
func (s *Service) Stop(ctx context.Context, id string, grace time.Duration) error {
	e, err := s.find(id)
	if err != nil {
		return nil //nolint:nilerr // an unknown container is stopped
	}
	return e.Change(ctx, "stopped", func() error { return e.stop(ctx, grace) })
}

// Remove ends a container, if it hasn't ended, and removes it. It succeeds for one that is unknown.
func (s *Service) Remove(ctx context.Context, id string) error {
	e, err := s.find(id)
	if err != nil {
		return nil //nolint:nilerr // an unknown container is removed
	}
	return e.Change(ctx, "removed", func() error {
		if err := e.stop(ctx, 0); err != nil {
			return err
		}
		return e.Remove(ctx)
	})
}

// StopAll kills every container of the sandbox.
func (s *Service) StopAll(ctx context.Context, sandbox string) error {
	return s.forEach(sandbox, func(id string) error { return s.Stop(ctx, id, 0) })
}

// RemoveAll removes every container of the sandbox.
func (s *Service) RemoveAll(ctx context.Context, sandbox string) error {
	return s.forEach(sandbox, func(id string) error { return s.Remove(ctx, id) })
}

// forEach calls fn for all containers of a sandbox at once and returns the first error.
func (s *Service) forEach(sandbox string, fn func(id string) error) error {
	var all errgroup.Group
	for _, st := range s.List(sandbox) {
		all.Go(func() error { return fn(st.ID) })
	}
	return all.Wait()
}

// Kill sends a signal to a running container's first process.
func (s *Service) Kill(ctx context.Context, id string, sig syscall.Signal) error {
	if _, err := s.running(id); err != nil {
		return err
	}
	return s.cfg.Runtime.Signal(ctx, id, sig)
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

// ReopenLog creates a running container's log file again after it was renamed, and writes to it
// from then on.
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

// Get returns the container with that ID.
func (s *Service) Get(id string) (Status, error) { return s.entries.Get(id) }

// Ended returns a channel that is closed once nothing of the container runs or is mounted any more.
func (s *Service) Ended(id string) (<-chan struct{}, error) {
	e, err := s.entries.Find(id)
	if err != nil {
		return nil, err
	}
	return e.Ended(), nil
}

// List returns the containers of a sandbox, or all if that is empty, newest first. It never waits
// for one that is being changed.
func (s *Service) List(sandbox string) []Status {
	if sandbox == "" {
		return s.entries.List()
	}
	return s.entries.ListGroup(sandbox)
}

// Select returns the containers for which keep returns true, newest first.
func (s *Service) Select(keep func(*Status) bool) []Status { return s.entries.Select(keep) }

// Views yields all containers, in no order. They must not be changed.
func (s *Service) Views() iter.Seq[*Status] { return s.entries.Views() }

// Close waits until the calls in flight have come to a safe point. Containers run on.
func (s *Service) Close() { s.entries.Close() }
