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

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/crashpoint"
	life "github.com/huskd/husk/internal/lifecycle"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/lifecycle"
)

// actionTimeout bounds one action. It is the sandbox's own: the deadline of
// whoever asked for it doesn't cut it short.
const actionTimeout = 2 * time.Minute

// ifName is the pod's interface in its first network.
const ifName = "eth0"

// record is what the journal keeps of a sandbox beside its config.
type record struct {
	State   lifecycle.State `json:"state"`
	Boot    string          `json:"boot"`
	Created time.Time       `json:"created"`
	Handler string          `json:"handler,omitempty"`
	// Order is that in which it is made; empty is lifecycle.BeforeStart.
	Order      lifecycle.Order `json:"order,omitempty"`
	Attachment pod.Attachment  `json:"attachment"`
	Attached   []pod.Attached  `json:"attached,omitempty"`
	Infra      *oci.Process    `json:"infra,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	// Unwanted says that nobody was told of it: it goes as soon as it is down.
	Unwanted bool `json:"unwanted,omitempty"`
}

// box is one sandbox. Its record is changed only by the holder of turn.
type box struct {
	s      *Service
	id     string
	key    string
	config *runtimeapi.PodSandboxConfig

	turn sync.Mutex
	rec  record
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
		s: s, id: id, key: key(config), config: config,
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
	if b.rec.State != lifecycle.Reserved {
		return nil
	}
	return b.s.records.Create(b.id, b.config, b.rec)
}

// publish makes the record what Get and List show.
func (b *box) publish() {
	b.published.Store(&Status{
		ID: b.id, Config: b.config, Handler: b.rec.Handler, State: b.rec.State, Created: b.rec.Created,
		Attachment: b.rec.Attachment, Attached: b.rec.Attached, Infra: b.rec.Infra, Reason: b.rec.Reason,
		Steps: slices.Clip(b.steps),
	})
	if b.s.cfg.Changed != nil {
		b.s.cfg.Changed(b.status())
	}
}

func (b *box) status() Status { return *b.published.Load() }

// enter journals the state to, and only then makes it the sandbox's own. On
// the way down a record that can't be written stops nothing: what is on disk
// then names a state that allows for more, and repeating its action is harmless.
func (b *box) enter(to lifecycle.State) error {
	next := b.rec
	next.State = to
	var err error
	switch {
	case to == lifecycle.Removed:
		err = b.s.records.Delete(b.id)
	case to.Down():
		err = b.s.records.Unwind(b.id, next)
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
	case lifecycle.Stopped:
		b.s.free(b)
		b.once.Do(func() { close(b.down) })
	case lifecycle.Removed:
		b.s.forget(b)
	}
	return nil
}

// drive lets ev happen and performs the actions that follow: see lifecycle.Drive.
func (b *box) drive(ev lifecycle.Event) error {
	return life.Drive(lifecycle.Of(b.rec.Order), walk{b}, ev)
}

// walk is the sandbox's way through the table.
type walk struct{ *box }

func (w walk) String() string { return "sandbox " + pod.Short(w.id) }

func (w walk) State() lifecycle.State { return w.rec.State }

func (w walk) Enter(to lifecycle.State) error { return w.enter(to) }

func (w walk) Failed(err error) { w.rec.Reason = err.Error() }

func (w walk) Act(in lifecycle.State, do lifecycle.Action) error {
	crashpoint.Hit("sandbox/" + string(in) + "/begin")
	began := time.Now()
	err := w.act(in, do)
	crashpoint.Hit("sandbox/" + string(in) + "/end")
	switch {
	case err == nil:
		w.steps = append(w.steps, pod.Step{Name: string(do), Took: time.Since(began)})
		return nil
	case in.Down():
		return fmt.Errorf("sandbox %s of pod %s: %s: %w", pod.Short(w.id), w.ref(), do, err)
	default:
		return fmt.Errorf("pod %s: %s sandbox: %w", w.ref(), verbs[do], err)
	}
}

// verbs say to a person what an action was about.
var verbs = map[lifecycle.Action]string{
	lifecycle.Pin:        "make namespaces of",
	lifecycle.Attach:     "attach network to",
	lifecycle.StartInfra: "start infra process of",
}

// run makes the sandbox; if that fails, it unwinds it and removes the record.
func (b *box) run() {
	b.turn.Lock()
	defer b.turn.Unlock()
	defer close(b.up)
	ev := lifecycle.Run
	stored := b.store()
	if stored != nil {
		stored = fmt.Errorf("sandbox of pod %s: %w", b.ref(), stored)
		b.rec.Reason, ev = stored.Error(), lifecycle.Fail
	}
	b.upErr = errors.Join(stored, b.drive(ev))
	if b.upErr == nil {
		b.watchInfra()
		return
	}
	b.rec.Unwanted = true
	if b.rec.State == lifecycle.Stopped {
		b.upErr = errors.Join(b.upErr, b.drive(lifecycle.Remove))
	}
	if b.rec.State != lifecycle.Removed {
		_ = b.s.records.Unwind(b.id, b.rec)
		b.settleLater()
	}
}

// stop takes the sandbox down, or joins whoever is doing that.
func (b *box) stop(reason string) error {
	b.cancelUp()
	b.turn.Lock()
	defer b.turn.Unlock()
	switch b.rec.State {
	case lifecycle.Stopped, lifecycle.Removing, lifecycle.Removed:
		return nil
	case lifecycle.Ready:
		b.rec.Reason = reason
	}
	return b.drive(lifecycle.Stop)
}

// remove removes a stopped sandbox, or joins whoever is doing that.
func (b *box) remove() error {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.rec.State == lifecycle.Removed {
		return nil
	}
	return b.drive(lifecycle.Remove)
}

// settleLater goes on taking down a sandbox that nobody will ask for again.
func (b *box) settleLater() {
	b.s.background.Go(func() {
		for wait := time.Second; ; wait = min(2*wait, time.Minute) {
			select {
			case <-time.After(wait):
			case <-b.s.closing.Done():
				return
			}
			err := b.stop("")
			if err == nil && b.unwanted() {
				err = b.remove()
			}
			if err == nil {
				return
			}
			b.s.cfg.Log.Warn("sandbox: taking it down failed, will be tried again", "sandbox", b.id, "pod", b.ref(), "error", err)
		}
	})
}

func (b *box) unwanted() bool {
	b.turn.Lock()
	defer b.turn.Unlock()
	return b.rec.Unwanted
}

// watchInfra stops the sandbox when its infra process, and so its PID
// namespace, is gone.
func (b *box) watchInfra() {
	if b.rec.Infra == nil {
		return
	}
	b.s.background.Go(func() {
		_, err := b.s.cfg.Runtime.Wait(b.s.closing, b.id)
		if b.s.closing.Err() != nil || b.status().State != lifecycle.Ready {
			return
		}
		if err == nil {
			err = errors.New("it ended")
		}
		if err := b.stop(fmt.Sprintf("its infra process is gone: %v", err)); err != nil {
			b.settleLater()
		}
	})
}
