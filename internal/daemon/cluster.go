package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source/apiserver"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/kubeletapi"
	"github.com/huskd/husk/internal/cluster/nodestats"
	"github.com/huskd/husk/internal/cluster/podstatus"
	"github.com/huskd/husk/internal/cluster/registration"
	"github.com/huskd/husk/internal/housekeeping"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/sysctl"
)

// membership makes huskd a node of a cluster. It is nil, and its methods do nothing, if no cluster
// is configured.
type membership struct {
	d *daemon
	// client is nil until the node has bootstrapped. Then connection is closed.
	client     *cluster.Client
	connection chan struct{}
	identity   *identity
	reporter   atomic.Pointer[podstatus.Reporter]
	// refresh reports the node again and looks at its pods again.
	refresh atomic.Pointer[func()]
}

// newMembership reads the kubeconfig, if one is configured. It sends no request yet.
func newMembership(d *daemon) (*membership, error) {
	if d.cfg.Kubeconfig == "" {
		return nil, nil
	}
	if err := checkNodeIPs(d.cfg); err != nil {
		return nil, err
	}
	id, err := newIdentity(d.cfg, d.log)
	if err != nil {
		return nil, err
	}
	m := &membership{d: d, identity: id, connection: make(chan struct{})}
	if id.bootstrap == nil {
		client, err := cluster.New(d.cfg.Kubeconfig, d.log)
		if err != nil {
			return nil, err
		}
		m.connected(client)
	}
	return m, nil
}

// connected sets the client, once.
func (m *membership) connected(client *cluster.Client) {
	m.client = client
	close(m.connection)
}

// podChanged returns the function that the agent calls when a pod has changed.
func podChanged(d *daemon) func(uid string) {
	return func(string) {
		d.policy.PodChanged()
		d.workloads.Nudge()
		d.services.PodChanged()
		d.names.podChanged()
		if d.membership != nil {
			d.membership.nudge()
		}
	}
}

func (m *membership) nudge() {
	if r := m.reporter.Load(); r != nil {
		r.Nudge()
	}
}

// join runs this machine as a node of the cluster until ctx ends, once it has a client certificate.
func (m *membership) join(ctx context.Context, running *errgroup.Group, keeper *housekeeping.Housekeeper) error {
	switch {
	case m == nil:
		return nil
	case m.client != nil:
		return m.start(ctx, running, keeper)
	}
	running.Go(func() error {
		client, err := m.identity.join(ctx, m.d.cfg, m.d.log)
		if err == nil && client != nil {
			m.connected(client)
			err = m.start(ctx, running, keeper)
		}
		if err != nil {
			m.d.log.Error("this machine is not a node of the cluster: restart huskd when that is corrected", "error", err)
		}
		return nil
	})
	return nil
}

// connect returns the client once the node has one, or the error of ctx.
func (m *membership) connect(ctx context.Context) (*cluster.Client, error) {
	select {
	case <-m.connection:
		return m.client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start runs this machine as a node of the cluster until ctx ends.
func (m *membership) start(ctx context.Context, running *errgroup.Group, keeper *housekeeping.Housekeeper) error {
	m.identity.renew(ctx, running, m.client)
	machine, err := m.machine()
	if err != nil {
		return err
	}
	usage := m.usage()
	server, err := m.kubeletAPI(usage)
	if err != nil {
		return err
	}
	pressure := newPressure(m.d, keeper, usage.Summary)
	sysctls, err := sysctl.Allow(m.d.cfg.UnsafeSysctls)
	if err != nil {
		return err
	}
	nodeEvents := event.NewLog()
	self := registration.Start(ctx, registration.Config{
		Client: m.client, Machine: machine.Object(), IPs: func() []string { return nodeIPs(m.d.cfg) }, Images: func() []corev1.ContainerImage { return reportedImages(m.d.images.List()) },
		Ready: m.ready, Pressure: pressure.Conditions, SetRanges: m.d.cni.SetRanges, Events: nodeEvents, Devices: m.d.devices.Resources,
	})
	pods := &apiserver.Source{
		Client: m.client, Node: self.Object, Deliver: m.d.agent.Declare, Log: m.d.log,
		Rules: apiserver.Rules{Pressure: pressure.Conditions, Sysctls: sysctls, AppArmor: m.d.facts.AppArmor, Devices: m.d.devices.Admit},
		Known: func(uid types.UID) *corev1.Pod {
			p, err := m.d.agent.Get(string(uid))
			if err != nil {
				return nil
			}
			return p.Manifest
		},
		Verdicts: apiserver.Verdicts{
			Rejected: func(pod *corev1.Pod, why admission.Refusal) { m.reporter.Load().Reject(pod, why) },
			Refused:  func(pod *corev1.Pod, why map[string]admission.Refusal) { m.reporter.Load().Refuse(pod, why) },
			Gone:     func(uid types.UID) { m.reporter.Load().Forget(uid) },
		},
		Preempt: func(uid types.UID) error {
			return m.d.agent.Evict(string(uid), podplan.ReasonPreempting, admission.PreemptedMessage)
		},
		Changed: m.nudge,
	}
	bound := pods.Start(ctx)
	m.startDevices(self, pods, bound)
	reporter := podstatus.New(podstatus.Config{
		Client: m.client, Agent: m.d.agent, Pods: bound, Node: self.Object, CRI: nodeFacts(m.d), Events: m.d.agent.Events, NodeEvents: nodeEvents,
	})
	m.reporter.Store(reporter)
	limit := func(ctx context.Context) error { return m.d.resources.enforce(ctx, m.d.cgroups.Tree, m.d.log) }
	for _, run := range []func(context.Context) error{limit, pressure.Run, self.Run, pods.Run, reporter.Run, server.Serve, m.d.devices.Serve, m.pluginRegistry().Run} {
		running.Go(func() error { return run(ctx) })
	}
	running.Go(func() error {
		<-ctx.Done()
		m.client.Close()
		return nil
	})
	return nil
}

// kubeletAPI returns the server of the kubelet API, to which the API server passes kubectl's
// requests.
func (m *membership) kubeletAPI(usage nodestats.Source) (*kubeletapi.Server, error) {
	ca := m.client.CA
	if path := m.d.cfg.NodeClientCA; path != "" {
		var err error
		if ca, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("--node-client-ca-file: %w", err)
		}
	}
	least, suites, err := m.d.cfg.TLS()
	if err != nil {
		return nil, err
	}
	return kubeletapi.New(kubeletapi.Config{
		Accept: kubeletapi.Accept{MinVersion: least, CipherSuites: suites},
		Client: m.client, Node: nodeName(m.d.cfg), Listen: m.d.cfg.NodeListen, CertFile: m.d.cfg.NodeTLSCert, KeyFile: m.d.cfg.NodeTLSKey, Signed: m.identity.signed(),
		ClientCA: ca, Hosts: append(nodeIPs(m.d.cfg), hostname()), HealthListen: m.d.cfg.NodeHealthz,
		HostLogs: "/var/log", Checkpoints: filepath.Join(m.d.cfg.Root, "checkpoints"),
		Pods: m.d.agent.List, Reported: func() []corev1.Pod { return m.reporter.Load().List() },
		Ended: m.d.containers.Ended, Sessions: m.d.streams, Checkpoint: m.d.containers.Checkpoint,
		Usage: kubeletapi.Usage{
			Metrics: m.d.metrics.OfNode(usage).ServeHTTP, Summary: usage.ServeSummary, Resource: usage.ServeResource, Cadvisor: usage.ServeCadvisor, Probes: usage.ServeProbes,
		},
		Debug: kubeletapi.Debug{Configuration: kubeletConfiguration(m.d.cfg), Flags: m.d.cfg.Values(), Level: &m.d.logOutput.level, LogHealth: func() error { return m.d.logOutput.check(blockedTime) }},
		Log:   m.d.log,
	})
}

// usage reads what the node and its pods use.
func (m *membership) usage() nodestats.Source {
	return nodestats.Source{
		Node: nodeName(m.d.cfg), Pods: m.d.agent.List, Meter: m.d.meter, Cgroup: m.d.sandboxes.Cgroup,
		Layer: m.d.containers.Layer, EmptyDir: m.d.volumes().EmptyDir, Images: m.d.images.Usage, Root: m.d.cfg.Root,
		Info:    func() corev1.NodeSystemInfo { return m.reporter.Load().Node().Status.NodeInfo },
		Tallies: m.d.agent.ProbeTallies, UserNamespaced: m.d.agent.UserNamespaced.Count, Booted: stats.Booted(), Started: time.Now(),
	}
}

// machine describes this machine for its registration.
func (m *membership) machine() (registration.Machine, error) {
	labels, err := m.d.cfg.Labels()
	if err != nil {
		return registration.Machine{}, err
	}
	taints, err := m.d.cfg.Taints()
	if err != nil {
		return registration.Machine{}, err
	}
	_, text, err := net.SplitHostPort(m.d.cfg.NodeListen)
	if err != nil {
		return registration.Machine{}, err
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return registration.Machine{}, err
	}
	used, err := stats.Node()
	if err != nil {
		return registration.Machine{}, err
	}
	return registration.Machine{
		Swap: int64(used.Memory.SwapLimit),
		Name: nodeName(m.d.cfg), Hostname: hostname(), ProviderID: m.d.cfg.ProviderID, Labels: labels, Taints: taints, Facts: m.d.facts, Handlers: m.d.handlers.List(),
		Capacity: m.d.resources.capacity, Allocatable: m.d.resources.allocatable, Port: int32(port),
	}, nil
}

// ready returns why no pod can be started, or nil.
func (m *membership) ready(ctx context.Context) error {
	if m.d.goingDown.Load() {
		return errGoingDown
	}
	if m.d.handlers.Missing != nil {
		return m.d.handlers.Missing
	}
	return m.d.cni.Status(ctx)
}

// Limits of the images in the node's status, as the kubelet has them.
const (
	maxReportedImages = 50
	maxReportedNames  = 5
)

// reportedImages returns the largest images, whose pull would take longest.
func reportedImages(list []image.Image) []corev1.ContainerImage {
	var out []corev1.ContainerImage
	for _, i := range list {
		names := slices.Concat(i.Digests, i.Tags)
		if len(names) == 0 {
			continue
		}
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), maxReportedNames)], SizeBytes: i.Size})
	}
	slices.SortStableFunc(out, func(a, b corev1.ContainerImage) int {
		if a.SizeBytes != b.SizeBytes {
			return int(min(max(b.SizeBytes-a.SizeBytes, -1), 1))
		}
		return slices.Compare(a.Names, b.Names)
	})
	return out[:min(len(out), maxReportedImages)]
}
