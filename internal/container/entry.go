package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// killTimeout is how long a killed process may take to end. A process in an uninterruptible system
// call takes longer: the call then fails and can be repeated.
const killTimeout = 30 * time.Second

// record is what the journal keeps of a container beside its config.
type record struct {
	owner.Record[containerstate.State]
	Sandbox    string      `json:"sandbox"`
	ImageID    string      `json:"imageID,omitempty"`
	Handler    string      `json:"handler,omitempty"`
	Log        string      `json:"log,omitempty"`
	StopSignal string      `json:"stopSignal,omitempty"` // of the image
	Started    time.Time   `json:"started,omitzero"`
	Process    oci.Process `json:"process,omitzero"`
	Exit       *oci.Exit   `json:"exit,omitempty"`
	Message    string      `json:"message,omitempty"`
	// Refusal is why the process can't be started. Start returns it, as CRI's clients expect that a
	// container that can be described can be created.
	Refusal *oci.StartError `json:"refusal,omitempty"`
	// User is the user that the process runs as.
	User *specs.User `json:"user,omitempty"`
	// Volumes are the IDs of the images that are mounted as volumes, by their path in the container.
	Volumes map[string]string `json:"volumes,omitempty"`
	// Resources replace those of the config once they have been changed.
	Resources *runtimeapi.LinuxContainerResources `json:"resources,omitempty"`
	// Cgroup is the path of the container's cgroup, if that is not in its sandbox's.
	Cgroup string `json:"cgroup,omitempty"`
}

// Table returns the lifecycle of containers.
func (*record) Table() *containerstate.Lifecycle { return &containerstate.Table }

type (
	entries = owner.Entries[containerstate.State, *record, *runtimeapi.ContainerConfig, Status]
	base    = owner.Entry[containerstate.State, *record, *runtimeapi.ContainerConfig, Status]
)

// entry is one container.
type entry struct {
	*base
	s *Service

	updating sync.Mutex // held while the hooks are asked about a change of limits

	// Invariant: these change only while Mu is held.
	release func() // releases the images
	from    string // directory of the CRIU images to restore the processes from, if any
	gone    bool   // the runtime has reported the exit: no process is left
}

func (s *Service) newEntry(id string, config *runtimeapi.ContainerConfig, rec *record) *entry {
	e := &entry{s: s}
	e.base = s.entries.NewEntry(id, key(rec.Sandbox, config), config, rec, e)
	e.Group = rec.Sandbox
	return e
}

func (s *Service) find(id string) (*entry, error) {
	e, err := s.entries.Find(id)
	if err != nil {
		return nil, err
	}
	return e.Object().(*entry), nil
}

func (e *entry) name() string { return e.Config.GetMetadata().GetName() }

// String names the container in errors.
func (e *entry) String() string { return fmt.Sprintf("container %q", e.name()) }

// Log returns the logger for messages about the container.
func (e *entry) Log() *slog.Logger {
	sandbox := e.Rec.Sandbox
	return e.s.cfg.Log.With("pod", e.s.cfg.Sandboxes.Pod(sandbox), "sandbox", pod.Short(sandbox), "container", e.ID, "name", e.name())
}

// bundle is the directory of what the container keeps until it has ended.
func (e *entry) bundle() string { return filepath.Join(e.s.cfg.State, "containers", e.ID) }

// layer is the directory of the writable layer and of all mounts.
func (e *entry) layer() string { return e.s.Layer(e.ID) }

// View returns the container as its record describes it.
func (e *entry) View() Status {
	rec := e.Rec
	st := Status{
		ID: e.ID, Sandbox: rec.Sandbox, Config: e.Config, State: rec.State, Handler: rec.Handler, ImageID: rec.ImageID, Log: rec.Log,
		Created: rec.Created, Started: rec.Started, Process: rec.Process, Reason: rec.Reason, Message: rec.Message,
		Steps: e.Steps(), User: rec.User, record: *rec,
	}
	if rec.Exit != nil {
		st.Exit, st.Finished = *rec.Exit, e.gone || rec.State != containerstate.Releasing
	}
	return st
}

// Entering does nothing: the hooks are asked before the start.
func (*entry) Entering(context.Context, containerstate.State) error { return nil }

// Failed notes why the container never ran. If it could not be created, no client knows it.
func (e *entry) Failed(err error) {
	e.Rec.Unwanted = e.Rec.Unwanted || e.Rec.State.BeingCreated()
	if e.Rec.Exit != nil {
		return
	}
	e.Rec.Exit = &oci.Exit{Code: 128, At: time.Now()} // the code that kubelet's users know
	if refusal := (*oci.StartError)(nil); errors.As(err, &refusal) {
		e.Rec.Exit.Code = refusal.Code
	}
	e.Rec.Reason, e.Rec.Message = "StartError", err.Error()
}

// Act performs an action in a span of its own.
func (e *entry) Act(ctx context.Context, in containerstate.State, do containerstate.Action) error {
	sandbox := e.Rec.Sandbox
	ref := e.s.cfg.Sandboxes.Pod(sandbox)
	ctx, span := trace.Start(ctx, "container/"+string(do),
		trace.PodNamespace, ref.Namespace, trace.PodName, ref.Name, trace.PodUID, ref.UID, trace.Sandbox, sandbox,
		trace.Container, e.ID, trace.ContainerName, e.name())
	err := e.perform(ctx, do)
	span.End(err)
	switch {
	case err == nil:
		return nil
	case in.Down():
		err = fmt.Errorf("%s: %s: %w", e, do, err)
	default:
		err = fmt.Errorf("%s: %w", e, err)
	}
	return &pod.StageError{Sandbox: sandbox, Container: e.ID, Stage: string(do), Err: err}
}

func (e *entry) start(ctx context.Context) error {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.Rec.State == containerstate.Running && e.Rec.Exit == nil {
		return nil
	}
	if e.Rec.State.Down() {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s (%s) has ended: create another", e, pod.Short(e.ID)))
	}
	if err := e.Drive(ctx, containerstate.Run); err != nil {
		return err
	}
	_ = e.notify(ctx, AfterStart)
	return nil
}

// stop ends the container, or waits for another call that does. The first process has the grace
// period to end by itself. Of several calls the shortest period counts.
func (e *entry) stop(ctx context.Context, grace time.Duration) error {
	e.CancelCreate()
	<-e.Created()
	if e.Status().State == containerstate.Running && grace > 0 {
		if ended, err := e.terminate(grace); ended || err != nil {
			return err
		}
	}
	if e.Status().State == containerstate.Running {
		limited, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		err := e.s.cfg.Runtime.KillAll(limited, e.ID)
		switch {
		case errdefs.IsDataLoss(err): // deleting it kills its processes
		case err != nil:
			return fmt.Errorf("%s (%s): kill: %w", e, pod.Short(e.ID), err)
		default:
			select {
			case <-e.Ended():
				return nil
			case <-time.After(killTimeout):
			}
		}
	}
	e.Mu.Lock()
	defer e.Mu.Unlock()
	switch e.Rec.State {
	case containerstate.Exited, containerstate.Removing, containerstate.Removed:
		return nil
	}
	if e.Rec.Exit == nil {
		e.Rec.Exit = &oci.Exit{Code: 137, At: time.Now()}
		e.Rec.Reason = "Error"
	}
	return e.Drive(ctx, containerstate.Exit)
}

// terminate sends the stop signal to the first process and reports whether the container has ended
// in time.
func (e *entry) terminate(grace time.Duration) (ended bool, err error) {
	if err := e.s.cfg.Runtime.Signal(context.Background(), e.ID, stopSignal(e.Config, e.Status().record.StopSignal)); err != nil {
		e.Log().Warn("container: can't send the stop signal, killing it", "error", err)
		return false, nil
	}
	select {
	case <-e.Ended():
		return true, nil
	case <-time.After(grace):
		return false, nil
	case <-e.s.entries.Closing().Done():
		return false, fmt.Errorf("%s (%s): huskd ends before the container does: stop it again", e, pod.Short(e.ID))
	}
}

// watch waits for the end of a created container's process. The caller holds e.Mu, except during
// Resume.
func (e *entry) watch() {
	if e.Rec.Refusal != nil {
		return
	}
	closing := e.s.entries.Closing()
	e.s.entries.Go(func() {
		exit, err := e.AwaitExit(e.s.cfg.Runtime.Wait)
		if closing.Err() != nil {
			return
		}
		if err != nil {
			e.Log().Warn("container: its exit code is lost", "error", err)
			exit = oci.Exit{Code: 255, At: time.Now(), Lost: true}
		}
		e.Mu.Lock()
		defer e.Mu.Unlock()
		if !e.Rec.State.Live() {
			return // the call that ended it has recorded the exit
		}
		e.gone = err == nil
		e.Rec.Exit = &exit
		e.Rec.Reason, e.Rec.Message = reason(exit)
		if errdefs.IsDataLoss(err) {
			e.Rec.Message = "the runtime's record of it is damaged; its processes were killed"
		}
		e.WarnTeardown(e.Drive(closing, containerstate.Exit))
	})
}

// reason says in kubelet's words how a process ended.
func reason(e oci.Exit) (word, message string) {
	switch {
	case e.Lost:
		return "Error", "its monitor (conmon) was killed, so its exit code is not known; its processes were killed"
	case e.OOMKilled:
		return "OOMKilled", "it used more memory than its limit"
	case e.Code == 0:
		return "Completed", ""
	}
	return "Error", ""
}
