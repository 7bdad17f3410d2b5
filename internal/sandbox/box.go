package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/chansync"
	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/lifecycle"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/trace"
)

// actionTimeout bounds one action. It is the sandbox's own: the deadline of
// whoever asked for it doesn't cut it short.
const actionTimeout = 2 * time.Minute

// ifName is the pod's interface in its first network.
const ifName = "eth0"

// record is what the journal keeps of a sandbox beside its config.
type record struct {
	State   sandboxstate.State `json:"state"`
	Boot    string             `json:"boot"`
	Created time.Time          `json:"created"`
	Handler string             `json:"handler,omitempty"`
	Boxed   bool               `json:"boxed,omitempty"` // see Config
	// Order is that in which it is made; empty is lifecycle.BeforeStart.
	Order      sandboxstate.Order `json:"order,omitempty"`
	Attachment pod.Attachment     `json:"attachment"`
	Attached   []pod.Attached     `json:"attached,omitempty"`
	Infra      *oci.Process       `json:"infra,omitempty"`
	Labels     spec.Labels        `json:"labels,omitzero"`
	Reason     string             `json:"reason,omitempty"`
	// Unwanted says that nobody was told of it: it goes as soon as it is down.
	Unwanted bool `json:"unwanted,omitempty"`
}

// box is one sandbox. Its record is changed only by the holder of turn.
type box struct {
	s      *Service
	id     string
	key    string
	config *runtimeapi.PodSandboxConfig

	turn chansync.Mutex
	rec  record
	// settling says that it goes on being taken down by itself.
	settling bool
	// steps of this huskd's, in their order
	steps []pod.Step
	// upCtx is that of the actions on the way up; cancelUp ends it when
	// somebody wants the sandbox stopped.
	upCtx    context.Context
	cancelUp context.CancelFunc

	up    chan struct{} // closed when the attempt to make it has ended
	upErr error         // read only after up
	down  chan struct{} // closed when it is stopped
	once  sync.Once

	published atomic.Pointer[Status]
}

func (s *Service) newBox(id string, config *runtimeapi.PodSandboxConfig) *box {
	b := &box{
		s: s, id: id, key: key(config), config: config, turn: chansync.NewMutex(),
		up: make(chan struct{}), down: make(chan struct{}),
	}
	b.upCtx, b.cancelUp = context.WithCancel(s.closing)
	return b
}

func (b *box) ref() pod.Ref { return Status{Config: b.config}.Ref() }

// dir has what the sandbox keeps until it is stopped.
func (b *box) dir() string { return filepath.Join(b.s.cfg.State, "sandboxes", b.id) }

func (b *box) options() *runtimeapi.NamespaceOption {
	return b.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// attachment is what the sandbox asks of the network; without a netns if it is
// in the host's.
func (b *box) attachment() pod.Attachment {
	a := pod.Attachment{Sandbox: b.id, Pod: b.ref(), IfName: ifName}
	if b.options().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		return a
	}
	a.Netns = filepath.Join(netns.Dir, b.s.cfg.Instance.Netns(b.id))
	for _, p := range b.config.GetPortMappings() {
		if p.GetHostPort() <= 0 {
			continue
		}
		host, _ := netip.ParseAddr(p.GetHostIp())
		if host.IsUnspecified() {
			host = netip.Addr{}
		}
		a.Ports = append(a.Ports, pod.PortMapping{
			Protocol: protocols[p.GetProtocol()],
			HostIP:   host,
			HostPort: uint16(p.GetHostPort()),
			Port:     uint16(p.GetContainerPort()),
		})
	}
	return a
}

var protocols = map[runtimeapi.Protocol]pod.Protocol{
	runtimeapi.Protocol_TCP:  pod.TCP,
	runtimeapi.Protocol_UDP:  pod.UDP,
	runtimeapi.Protocol_SCTP: pod.SCTP,
}

// store journals the sandbox for the first time, unless it was stopped before.
func (b *box) store() error {
	if b.rec.State != sandboxstate.Reserved {
		return nil
	}
	return b.s.records.Create(b.id, b.config, b.rec)
}

// publish makes the record what Get and List show.
func (b *box) publish() {
	st := b.view()
	b.published.Store(&st)
	if b.s.cfg.Changed != nil {
		b.s.cfg.Changed(st)
	}
}

// view is the sandbox as its record has it, for the holder of its turn.
func (b *box) view() Status {
	return Status{
		ID: b.id, Config: b.config, Handler: b.rec.Handler, State: b.rec.State, Created: b.rec.Created,
		Attachment: b.rec.Attachment, Attached: b.rec.Attached, Infra: b.rec.Infra, Labels: b.rec.Labels, Reason: b.rec.Reason,
		Steps: slices.Clip(b.steps),
	}
}

func (b *box) status() Status { return *b.published.Load() }

// enter journals the state to, and only then makes it the sandbox's own. On
// the way down a record that can't be written stops nothing: what is on disk
// then names a state that allows for more, and repeating its action is harmless.
func (b *box) enter(to sandboxstate.State) error {
	next := b.rec
	next.State = to
	var err error
	switch {
	case to == sandboxstate.Removed:
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
		b.s.cfg.Log.Warn("sandbox: journal", "sandbox", b.id, "pod", b.ref(), "state", to, "error", err)
	}
	b.rec = next
	b.publish()
	switch to {
	case sandboxstate.Stopped:
		b.s.free(b)
		b.once.Do(func() { close(b.down) })
	case sandboxstate.Removed:
		b.s.forget(b)
	}
	return nil
}

// drive lets ev happen and performs the actions that follow: see lifecycle.Drive.
// Of ctx, that of whoever asked for it, they have the span and not the end.
func (b *box) drive(ctx context.Context, ev sandboxstate.Event) error {
	err := lifecycle.Drive(sandboxstate.Of(b.rec.Order), walk{b, ctx}, ev)
	if err != nil && b.rec.State.Owes() {
		b.settleLater()
	}
	return err
}

// walk is the sandbox's way through the table, and who has it go there.
type walk struct {
	*box
	asked context.Context
}

func (w walk) String() string { return "sandbox " + pod.Short(w.id) }

func (w walk) State() sandboxstate.State { return w.rec.State }

func (w walk) Enter(to sandboxstate.State) error {
	if to == sandboxstate.Ready {
		if err := (hooked{w.box}).tell(w.asked, BeforeReady); err != nil {
			return fmt.Errorf("pod %s: %w", w.ref(), err)
		}
	}
	return w.enter(to)
}

// Failed notes with the reason that nobody is told of the sandbox: the record of
// its way down says so, should huskd not live to see the end of it.
func (w walk) Failed(err error) { w.rec.Reason, w.rec.Unwanted = err.Error(), true }

func (w walk) Act(in sandboxstate.State, do sandboxstate.Action) error {
	crashpoint.Hit("sandbox/" + string(in) + "/begin")
	began := time.Now()
	err := w.traced(in, do)
	crashpoint.Hit("sandbox/" + string(in) + "/end")
	step := pod.Step{Name: string(do), Took: time.Since(began)}
	if w.s.cfg.Stepped != nil {
		w.s.cfg.Stepped(step, err)
	}
	switch {
	case err == nil:
		w.steps = append(w.steps, step)
		return nil
	case in.Down():
		err = fmt.Errorf("sandbox %s of pod %s: %s: %w", pod.Short(w.id), w.ref(), do, err)
	default:
		err = fmt.Errorf("pod %s: %s sandbox: %w", w.ref(), verbs[do], err)
	}
	return &pod.StageError{Sandbox: w.id, Stage: string(do), Err: err}
}

// traced performs an action in a span of its own.
func (w walk) traced(in sandboxstate.State, do sandboxstate.Action) error {
	ctx := w.upCtx
	if in.Down() {
		ctx = context.Background() // nobody can cut cleaning up short
	}
	ref := w.ref()
	ctx, span := trace.Start(trace.Follow(ctx, w.asked), "sandbox/"+string(do),
		trace.PodNamespace, ref.Namespace, trace.PodName, ref.Name, trace.PodUID, ref.UID, trace.Sandbox, w.id)
	err := w.act(ctx, do)
	span.End(err)
	return err
}

// verbs say to a person what an action was about.
var verbs = map[sandboxstate.Action]string{
	sandboxstate.Pin:        "make namespaces of",
	sandboxstate.Attach:     "attach network to",
	sandboxstate.StartInfra: "start infra process of",
}

// run makes the sandbox; if that fails, it unwinds it and removes the record.
func (b *box) run(ctx context.Context) {
	b.turn.Lock()
	defer b.turn.Unlock()
	defer close(b.up)
	ev := sandboxstate.Run
	stored := b.store()
	if stored != nil {
		stored = fmt.Errorf("sandbox of pod %s: %w", b.ref(), stored)
		b.rec.Reason, ev = stored.Error(), sandboxstate.Fail
	}
	b.upErr = errors.Join(stored, b.drive(ctx, ev))
	if b.upErr == nil {
		watchInfra(b)
		return
	}
	b.rec.Unwanted = true
	if b.rec.State == sandboxstate.Stopped {
		b.upErr = errors.Join(b.upErr, b.drive(ctx, sandboxstate.Remove))
	}
}

// stop takes the sandbox down, or joins whoever is doing that.
func (b *box) stop(ctx context.Context, reason string) error {
	b.cancelUp()
	b.turn.Lock()
	defer b.turn.Unlock()
	switch b.rec.State {
	case sandboxstate.Stopped, sandboxstate.Removing, sandboxstate.Removed:
		return nil
	case sandboxstate.Ready:
		b.rec.Reason = reason
	}
	return b.drive(ctx, sandboxstate.Stop)
}

// remove removes a stopped sandbox, or joins whoever is doing that.
func (b *box) remove(ctx context.Context) error {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.rec.State == sandboxstate.Removed {
		return nil
	}
	return b.drive(ctx, sandboxstate.Remove)
}

// settleLater goes on taking down what could not be, whether or not anybody asks
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
	if b.rec.State.Owes() && b.rec.State != sandboxstate.Removing {
		err = b.drive(b.s.closing, sandboxstate.Stop)
	}
	if err == nil && (b.rec.State == sandboxstate.Removing || b.rec.State == sandboxstate.Stopped && b.rec.Unwanted) {
		err = b.drive(b.s.closing, sandboxstate.Remove)
	}
	if err != nil {
		b.s.cfg.Log.Warn("sandbox: taking it down failed, will be tried again", "sandbox", b.id, "pod", b.ref(), "error", err)
		return false
	}
	b.settling = false
	return true
}

// watchInfra stops the sandbox when its infra process, and so its PID
// namespace, is gone.
func watchInfra(b *box) {
	if b.rec.Infra == nil {
		return
	}
	b.s.background.Go(func() {
		err := infraEnd(b)
		if b.s.closing.Err() != nil || b.status().State != sandboxstate.Ready {
			return
		}
		if err := b.stop(b.s.closing, fmt.Sprintf("its infra process is gone: %v", err)); err != nil {
			b.s.cfg.Log.Warn("sandbox: taking it down failed, will be tried again", "sandbox", b.id, "pod", b.ref(), "error", err)
		}
	})
}

// infraEnd returns why the infra process is gone, once it is. Any error but
// that the runtime doesn't know it, such as too many open files, says nothing
// about it: the runtime is asked again.
func infraEnd(b *box) error {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		_, err := b.s.cfg.Runtime.Wait(b.s.closing, b.id)
		switch {
		case err == nil:
			return errors.New("it ended")
		case b.s.closing.Err() != nil, errdefs.IsNotFound(err):
			return err
		}
		b.s.cfg.Log.Warn("sandbox: wait for its infra process", "sandbox", b.id, "pod", b.ref(), "error", err)
		select {
		case <-time.After(pause):
		case <-b.down:
			return err
		case <-b.s.closing.Done():
			return err
		}
	}
}
