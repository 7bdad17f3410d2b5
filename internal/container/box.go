package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/chansync"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/lifecycle"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// actionTimeout bounds one action. It is the container's own: the deadline of
// whoever asked for it doesn't cut it short.
const actionTimeout = 2 * time.Minute

// killTimeout is how long a killed process may take to be gone. A process in
// an uninterruptible system call takes longer: the call then fails and may be
// repeated.
const killTimeout = 30 * time.Second

// record is what the journal keeps of a container beside its config.
type record struct {
	Sandbox string               `json:"sandbox"`
	State   containerstate.State `json:"state"`
	Boot    string               `json:"boot"`
	ImageID string               `json:"imageID,omitempty"`
	Handler string               `json:"handler,omitempty"`
	Log     string               `json:"log,omitempty"`
	// StopSignal is what the image says.
	StopSignal string      `json:"stopSignal,omitempty"`
	Created    time.Time   `json:"created"`
	Started    time.Time   `json:"started,omitzero"`
	Process    oci.Process `json:"process,omitzero"`
	Exit       *oci.Exit   `json:"exit,omitempty"`
	Reason     string      `json:"reason,omitempty"`
	Message    string      `json:"message,omitempty"`
	// Refusal is why its process can't be started, which its Start tells: for
	// CRI's clients a container that can be described can be created.
	Refusal *oci.StartError `json:"refusal,omitempty"`
	// User is who its process runs as.
	User *specs.User `json:"user,omitempty"`
	// Volumes are the IDs of the images that it has mounted, by where.
	Volumes map[string]string `json:"volumes,omitempty"`
	// Resources are what its config's have been changed to.
	Resources *runtimeapi.LinuxContainerResources `json:"resources,omitempty"`
	// Cgroup is where its own is, if that is not in its sandbox's.
	Cgroup string `json:"cgroup,omitempty"`
	// Unwanted says that nobody was told of it: it goes as soon as it has ended.
	Unwanted bool `json:"unwanted,omitempty"`
}

// box is one container. Its record is changed only by the holder of turn.
type box struct {
	s       *Service
	id      string
	key     string
	sandbox string
	config  *runtimeapi.ContainerConfig

	updating sync.Mutex // had by who asks the hooks for a change of limits
	turn     chansync.Mutex
	rec      record
	steps    []pod.Step // of this huskd's, in their order
	release  func()     // of the image
	from     string     // directory of CRIU's images of which it is made
	settling bool       // it goes on being released by itself
	gone     bool       // no process of it is left: the runtime has said so
	upCtx    context.Context
	cancelUp context.CancelFunc

	up    chan struct{} // closed when the attempt to create it has ended
	upErr error         // read only after up
	ended chan struct{} // closed when nothing of it runs or is mounted any more
	once  sync.Once

	published atomic.Pointer[Status]
}

func (s *Service) newBox(id, sandbox string, config *runtimeapi.ContainerConfig) *box {
	b := &box{
		s: s, id: id, key: key(sandbox, config), sandbox: sandbox, config: config, turn: chansync.NewMutex(),
		up: make(chan struct{}), ended: make(chan struct{}),
	}
	b.upCtx, b.cancelUp = context.WithCancel(s.closing)
	return b
}

func (b *box) name() string { return b.config.GetMetadata().GetName() }

// teller says whose container it is.
type teller struct{ *box }

func (t teller) pod() pod.Ref { return t.s.cfg.Sandboxes.Pod(t.sandbox) }

// log is the one of what happens to the container.
func (t teller) log() *slog.Logger {
	return t.s.cfg.Log.With("pod", t.pod(), "sandbox", pod.Short(t.sandbox), "container", t.id, "name", t.name())
}

// bundle has what the container keeps until it has ended; layer its writable
// layer, which it keeps until it is removed.
func (b *box) bundle() string { return filepath.Join(b.s.cfg.State, "containers", b.id) }
func (b *box) layer() string  { return filepath.Join(b.s.cfg.Root, "containers", b.id) }

// store journals the container for the first time, unless it was stopped before.
func (b *box) store() error {
	if b.rec.State != containerstate.Reserved {
		return nil
	}
	return b.s.records.Create(b.id, b.config, b.rec)
}

// publish makes the record what Get and List show, and tells of it.
func (b *box) publish() {
	st := b.view()
	b.published.Store(&st)
	if b.s.cfg.Changed != nil {
		b.s.cfg.Changed(st)
	}
}

// view is the container as its record has it, for the holder of its turn.
func (b *box) view() Status {
	st := Status{
		ID: b.id, Sandbox: b.sandbox, Config: b.config, State: b.rec.State, Handler: b.rec.Handler, ImageID: b.rec.ImageID, Log: b.rec.Log,
		Created: b.rec.Created, Started: b.rec.Started, Process: b.rec.Process, Reason: b.rec.Reason, Message: b.rec.Message,
		Steps: slices.Clip(b.steps), User: b.rec.User, record: b.rec,
	}
	if b.rec.Exit != nil {
		st.Exit, st.Finished = *b.rec.Exit, b.gone || b.rec.State != containerstate.Releasing
	}
	return st
}

func (b *box) status() Status { return *b.published.Load() }

// enter journals the state to, and only then makes it the container's own. On
// the way down a record that can't be written stops nothing.
func (b *box) enter(to containerstate.State) error {
	next := b.rec
	next.State = to
	var err error
	switch {
	case to == containerstate.Removed:
		err = b.s.records.Delete(b.id)
	case to.Down():
		err = b.s.records.PutUsingReserve(b.id, next)
	default:
		err = b.s.records.Put(b.id, next)
	}
	if err != nil && !to.Down() {
		return err
	}
	if err != nil {
		teller{b}.log().Warn("container: journal", "state", to, "error", err)
	}
	b.rec = next
	switch to {
	case containerstate.Exited:
		b.s.free(b)
	case containerstate.Removed:
		b.s.forget(b)
	}
	b.publish()
	if to == containerstate.Exited { // whoever waits for that sees it in the status
		b.once.Do(func() { close(b.ended) })
	}
	return nil
}

// drive lets ev happen and performs the actions that follow: see lifecycle.Drive.
// Of ctx, that of whoever asked for it, they have the span and not the end.
func (b *box) drive(ctx context.Context, ev containerstate.Event) error {
	if err := lifecycle.Drive(&containerstate.Table, walk{b, ctx}, ev); err != nil {
		if b.rec.State.Owes() {
			b.settleLater()
		}
		return fmt.Errorf("container %q: %w", b.name(), err)
	}
	return nil
}

// walk is the container's way through the table, and who has it go there.
type walk struct {
	*box
	asked context.Context
}

func (w walk) String() string { return "it" }

func (w walk) State() containerstate.State { return w.rec.State }

func (w walk) Enter(to containerstate.State) error { return w.enter(to) }

// Failed notes that nobody is told of a container that could not be created: the
// record of its way down says so, should huskd not live to see the end of it.
func (w walk) Failed(err error) {
	w.rec.Unwanted = w.rec.Unwanted || w.rec.State.Made()
	w.failed(fmt.Errorf("container %q: %w", w.name(), err))
}

func (w walk) Act(in containerstate.State, do containerstate.Action) error {
	crashpoint.Hit("container/" + string(in) + "/begin")
	began := time.Now()
	err := w.traced(in, do)
	crashpoint.Hit("container/" + string(in) + "/end")
	step := pod.Step{Name: string(do), Took: time.Since(began)}
	if w.s.cfg.Stepped != nil {
		w.s.cfg.Stepped(step, err)
	}
	if err == nil {
		w.steps = append(w.steps, step)
		return nil
	}
	if in.Down() {
		err = fmt.Errorf("%s: %w", do, err)
	}
	return &pod.StageError{Sandbox: w.sandbox, Container: w.id, Stage: string(do), Err: err}
}

// traced performs an action in a span of its own.
func (w walk) traced(in containerstate.State, do containerstate.Action) error {
	ctx := w.upCtx
	if in.Down() {
		ctx = context.Background() // nobody can cut cleaning up short
	}
	ref := teller{w.box}.pod()
	ctx, span := trace.Start(trace.Follow(ctx, w.asked), "container/"+string(do),
		trace.PodNamespace, ref.Namespace, trace.PodName, ref.Name, trace.PodUID, ref.UID, trace.Sandbox, w.sandbox,
		trace.Container, w.id, trace.ContainerName, w.name())
	err := w.act(ctx, do)
	span.End(err)
	return err
}

// failed records why the container never ran, as kubelet's users see it.
func (b *box) failed(err error) {
	if b.rec.Exit != nil {
		return
	}
	b.rec.Exit = &oci.Exit{Code: 128, At: time.Now()}
	if refusal := (*oci.StartError)(nil); errors.As(err, &refusal) {
		b.rec.Exit.Code = refusal.Code
	}
	b.rec.Reason, b.rec.Message = "StartError", err.Error()
}

// create makes the container; if that fails, it unwinds it and removes the record.
func (b *box) create(ctx context.Context) {
	b.turn.Lock()
	defer b.turn.Unlock()
	defer close(b.up)
	ev := containerstate.Make
	stored := b.store()
	if stored != nil {
		stored = fmt.Errorf("container %q: %w", b.name(), stored)
		b.failed(stored)
		ev = containerstate.Fail
	}
	b.upErr = errors.Join(stored, b.drive(ctx, ev))
	if b.upErr == nil {
		_ = hooked{b}.tell(ctx, AfterCreate)
		b.watch()
		return
	}
	b.discard(ctx, &b.upErr)
}

// discard removes a container that nobody was told of.
func (b *box) discard(ctx context.Context, err *error) {
	b.rec.Unwanted = true
	if b.rec.State == containerstate.Exited {
		*err = errors.Join(*err, b.drive(ctx, containerstate.Destroy))
	}
}

func (b *box) start(ctx context.Context) error {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.rec.State == containerstate.Running && b.rec.Exit == nil {
		return nil
	}
	if b.rec.State.Down() {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q (%s) has ended: create another", b.name(), pod.Short(b.id)))
	}
	err := b.drive(ctx, containerstate.Run)
	if err == nil {
		_ = hooked{b}.tell(ctx, AfterStart)
	}
	return err
}

// stop ends the container, or joins whoever is doing that. The first process
// is given grace to end by itself; of several calls the shortest grace counts.
func (b *box) stop(ctx context.Context, grace time.Duration) error {
	b.cancelUp()
	<-b.up
	if b.status().State == containerstate.Running && grace > 0 {
		if ended, err := b.terminate(grace); ended || err != nil {
			return err
		}
	}
	if b.status().State == containerstate.Running {
		limited, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		if err := b.s.cfg.Runtime.KillAll(limited, b.id); err != nil {
			return fmt.Errorf("container %q (%s): kill: %w", b.name(), pod.Short(b.id), err)
		}
		select {
		case <-b.ended:
			return nil
		case <-time.After(killTimeout):
		}
	}
	b.turn.Lock()
	defer b.turn.Unlock()
	switch b.rec.State {
	case containerstate.Exited, containerstate.Removing, containerstate.Removed:
		return nil
	}
	if b.rec.Exit == nil {
		b.rec.Exit = &oci.Exit{Code: 137, At: time.Now()}
		b.rec.Reason = "Error"
	}
	return b.drive(ctx, containerstate.Exit)
}

// terminate asks the first process to end and says whether it did so in time.
func (b *box) terminate(grace time.Duration) (ended bool, err error) {
	if err := b.s.cfg.Runtime.Signal(context.Background(), b.id, stopSignal(b.config, b.status().record.StopSignal)); err != nil {
		teller{b}.log().Warn("container: stop signal", "error", err)
		return false, nil
	}
	select {
	case <-b.ended:
		return true, nil
	case <-time.After(grace):
		return false, nil
	case <-b.s.closing.Done():
		return false, fmt.Errorf("container %q (%s): huskd ends while it is being stopped", b.name(), pod.Short(b.id))
	}
}

// remove removes an ended container, or joins whoever is doing that.
func (b *box) remove(ctx context.Context) error {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.rec.State == containerstate.Removed {
		return nil
	}
	return b.drive(ctx, containerstate.Destroy)
}

// watch waits for the end of a created container's process.
func (b *box) watch() {
	if b.rec.Refusal != nil {
		return
	}
	b.s.background.Go(func() {
		exit, err := exitOf(b)
		if b.s.closing.Err() != nil {
			return
		}
		if err != nil {
			exit = oci.Exit{Code: 255, At: time.Now(), Lost: true}
		}
		b.turn.Lock()
		defer b.turn.Unlock()
		if !b.rec.State.Live() {
			return // whoever ended it has recorded how
		}
		b.gone = err == nil
		b.rec.Exit = &exit
		b.rec.Reason, b.rec.Message = reason(exit)
		if err := b.drive(b.s.closing, containerstate.Exit); err != nil {
			teller{b}.log().Warn("container: releasing it failed, will be tried again", "error", err)
		}
	})
}

// exitOf returns how a container ended, or that the runtime doesn't know it.
// Any other error, such as too many open files, says nothing about the
// container: it is asked again.
func exitOf(b *box) (oci.Exit, error) {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		exit, err := b.s.cfg.Runtime.Wait(b.s.closing, b.id)
		if err == nil || b.s.closing.Err() != nil {
			return exit, err
		}
		teller{b}.log().Warn("container: wait", "error", err)
		if errdefs.IsNotFound(err) {
			return exit, err
		}
		select {
		case <-time.After(pause):
		case <-b.ended:
			return exit, err
		case <-b.s.closing.Done():
		}
	}
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

// settleLater goes on releasing what could not be, whether or not anybody asks
// again. The caller has the turn.
func (b *box) settleLater() {
	if b.settling {
		return
	}
	b.settling = true
	b.s.background.Go(func() {
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			select {
			case <-time.After(wait):
			case <-b.s.closing.Done():
				return
			}
			if b.settle() {
				return
			}
		}
	})
}

// settle says whether all is done that is to be.
func (b *box) settle() bool {
	b.turn.Lock()
	defer b.turn.Unlock()
	var err error
	if b.rec.State == containerstate.Releasing {
		err = b.drive(b.s.closing, containerstate.Exit)
	}
	if err == nil && (b.rec.State == containerstate.Removing || b.rec.State == containerstate.Exited && b.rec.Unwanted) {
		err = b.drive(b.s.closing, containerstate.Destroy)
	}
	if err != nil {
		teller{b}.log().Warn("container: releasing it failed, will be tried again", "error", err)
		return false
	}
	b.settling = false
	return true
}
