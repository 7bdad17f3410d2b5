package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/trace"
)

// ifName is the pod's interface in its first network.
const ifName = "eth0"

// record is what the journal keeps of a sandbox beside its config.
type record struct {
	owner.Record[sandboxstate.State]
	Handler        string             `json:"handler,omitempty"`
	RuntimeSandbox bool               `json:"boxed,omitempty"` // see Handlers
	Order          sandboxstate.Order `json:"order,omitempty"` // empty is sandboxstate.BeforeStart
	Attachment     pod.Attachment     `json:"attachment"`
	Attached       []pod.Attached     `json:"attached,omitempty"`
	Infra          *oci.Process       `json:"infra,omitempty"`
	Labels         spec.Labels        `json:"labels,omitzero"`
	// CgroupOfUID says that the name of huskd's cgroup has the pod's UID. Before, none had it.
	CgroupOfUID bool   `json:"cgroupOfUID,omitempty"`
	Displaced   string `json:"displaced,omitempty"` // see pod.Displacement

	// replace isn't kept over a restart: its reason may be gone then.
	replace bool
}

// Table returns the lifecycle of a sandbox with the record's order.
func (r *record) Table() *sandboxstate.Lifecycle { return sandboxstate.Of(r.Order) }

type (
	entries = owner.Entries[sandboxstate.State, *record, *runtimeapi.PodSandboxConfig, Status]
	base    = owner.Entry[sandboxstate.State, *record, *runtimeapi.PodSandboxConfig, Status]
)

// entry is one sandbox.
type entry struct {
	*base
	s *Service
	// stopWarming ends what Config.Prewarm has started; nil before.
	stopWarming func()
}

func (s *Service) newEntry(id string, config *runtimeapi.PodSandboxConfig, rec *record) *entry {
	e := &entry{s: s}
	e.base = s.entries.NewEntry(id, key(config), config, rec, e)
	return e
}

func (s *Service) find(id string) (*entry, error) {
	e, err := s.entries.Find(id)
	if err != nil {
		return nil, err
	}
	return e.Object().(*entry), nil
}

func (e *entry) ref() pod.Ref { return Status{Config: e.Config}.Ref() }

// String names the sandbox in errors.
func (e *entry) String() string { return fmt.Sprintf("sandbox %s of pod %s", pod.Short(e.ID), e.ref()) }

// Log returns the logger for messages about the sandbox.
func (e *entry) Log() *slog.Logger { return e.s.cfg.Log.With("sandbox", e.ID, "pod", e.ref()) }

// dir is the directory of what the sandbox keeps until it is stopped.
func (e *entry) dir() string { return filepath.Join(e.s.cfg.State, "sandboxes", e.ID) }

func (e *entry) options() *runtimeapi.NamespaceOption {
	return e.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// View returns the sandbox as its record describes it.
func (e *entry) View() Status {
	attachment := e.Rec.Attachment
	attachment.RuntimeManaged, attachment.Labels = e.Rec.RuntimeSandbox, e.labels()
	displaced, reason := pod.Displacement{Message: e.Rec.Displaced, Replace: e.Rec.replace}, e.Rec.Reason
	if displaced.Replace {
		reason = cmp.Or(reason, displaced.Message)
	}
	uid := ""
	if e.Rec.CgroupOfUID {
		uid = e.ref().UID
	}
	return Status{
		ID: e.ID, Config: e.Config, Handler: e.Rec.Handler, State: e.Rec.State, Created: e.Rec.Created,
		Attachment: attachment, Attached: e.Rec.Attached, Infra: e.Rec.Infra, Labels: e.Rec.Labels, Reason: reason,
		Displaced: displaced, Steps: e.Steps(), cgroup: cgroupName(uid, e.ID),
	}
}

// labels returns the pod's labels, which network policy needs. They are not nil, which would mean
// that they aren't known.
func (e *entry) labels() map[string]string {
	if l := e.Config.GetLabels(); l != nil {
		return l
	}
	return map[string]string{}
}

// attachment is what the sandbox asks of the network. It has no netns if the sandbox is in the
// host's.
func (e *entry) attachment() pod.Attachment {
	a := pod.Attachment{Sandbox: e.ID, Pod: e.ref(), IfName: ifName, RuntimeManaged: e.Rec.RuntimeSandbox, Labels: e.labels()}
	if e.options().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		return a
	}
	a.Netns = filepath.Join(netns.Dir, e.s.cfg.Instance.Netns(e.ID))
	for _, p := range e.Config.GetPortMappings() {
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

// Entering lets the hooks refuse that the sandbox becomes ready.
func (e *entry) Entering(ctx context.Context, to sandboxstate.State) error {
	if to != sandboxstate.Ready {
		return nil
	}
	if err := e.notify(ctx, BeforeReady); err != nil {
		return fmt.Errorf("pod %s: %w", e.ref(), err)
	}
	return nil
}

// Failed notes the reason. Run returns an error instead of the sandbox, so no client knows it.
func (e *entry) Failed(err error) { e.Rec.Reason, e.Rec.Unwanted = err.Error(), true }

// Act performs an action in a span of its own.
func (e *entry) Act(ctx context.Context, in sandboxstate.State, do sandboxstate.Action) error {
	ref := e.ref()
	ctx, span := trace.Start(ctx, "sandbox/"+string(do),
		trace.PodNamespace, ref.Namespace, trace.PodName, ref.Name, trace.PodUID, ref.UID, trace.Sandbox, e.ID)
	err := e.perform(ctx, do)
	span.End(err)
	switch {
	case err == nil:
		return nil
	case in.Down():
		err = fmt.Errorf("%s: %s: %w", e, do, err)
	default:
		err = fmt.Errorf("pod %s: %s sandbox: %w", ref, verbs[do], err)
	}
	return &pod.StageError{Sandbox: e.ID, Stage: string(do), Err: err}
}

// verbs describe actions in errors.
var verbs = map[sandboxstate.Action]string{
	sandboxstate.Pin:        "make namespaces of",
	sandboxstate.Attach:     "attach network to",
	sandboxstate.StartInfra: "start infra process of",
}

// stop takes the sandbox down, or waits for another call that does.
func (e *entry) stop(ctx context.Context, reason string) error {
	e.CancelCreate()
	e.Mu.Lock()
	defer e.Mu.Unlock()
	switch e.Rec.State {
	case sandboxstate.Stopped, sandboxstate.Removing, sandboxstate.Removed:
		return nil
	case sandboxstate.Ready:
		e.Rec.Reason = reason
	}
	return e.Drive(ctx, sandboxstate.Stop)
}

// watchInfra stops the sandbox when its infra process, and so its PID namespace, is gone. The
// caller holds e.Mu.
func (e *entry) watchInfra() {
	if e.Rec.Infra == nil {
		return
	}
	process, closing := *e.Rec.Infra, e.s.entries.Closing()
	e.s.entries.Go(func() {
		_, err := e.AwaitExit(func(ctx context.Context, id string) (oci.Exit, error) {
			return e.s.cfg.Infra.Wait(ctx, id, infraDir(e.dir()), process)
		})
		if closing.Err() != nil || e.Status().State != sandboxstate.Ready {
			return
		}
		if err == nil {
			err = errors.New("it ended")
		}
		e.WarnTeardown(e.stop(closing, fmt.Sprintf("its infra process is gone: %v", err)))
	})
}
