package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent/source/apiserver"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/kubeletapi"
	"github.com/huskd/husk/internal/cluster/nodestats"
	"github.com/huskd/husk/internal/cluster/podstatus"
	"github.com/huskd/husk/internal/cluster/registration"
	"github.com/huskd/husk/internal/stats"
)

// membership is huskd's part in a cluster. Without a cluster it is nil, and does
// nothing.
type membership struct {
	*daemon
	client   *cluster.Client
	reporter atomic.Pointer[podstatus.Reporter]
}

// apply reads how the API server is reached, if there is one. It asks nothing yet.
func apply(d *daemon) (*membership, error) {
	if d.cfg.Kubeconfig == "" {
		return nil, nil
	}
	client, err := cluster.New(d.cfg.Kubeconfig, d.log)
	if err != nil {
		return nil, err
	}
	return &membership{daemon: d, client: client}, nil
}

// podChanged returns what the agent is to call when a pod has changed.
func (m *membership) podChanged() func(uid string) {
	if m == nil {
		return nil
	}
	return func(string) { m.nudge() }
}

func (m *membership) nudge() {
	if r := m.reporter.Load(); r != nil {
		r.Nudge()
	}
}

// join makes this machine a node of the cluster until ctx ends, if there is one.
func (m *membership) join(ctx context.Context, running *errgroup.Group) error {
	if m == nil {
		return nil
	}
	machine, err := m.machine()
	if err != nil {
		return err
	}
	server, err := m.openDoor()
	if err != nil {
		return err
	}
	self := registration.Start(ctx, registration.Config{
		Client: m.client, Machine: machine.Object(), IPs: nodeIPs, Images: m.toldImages,
		Ready: m.ready, SetRanges: m.cni.SetRanges,
	})
	pods := &apiserver.Source{
		Client: m.client, Node: self.Object, Deliver: m.agent.Declare, Log: m.log,
		Known: func(uid types.UID) *corev1.Pod {
			p, err := m.agent.Get(string(uid))
			if err != nil {
				return nil
			}
			return p.Manifest
		},
		Refused: func(pod *corev1.Pod, reason, message string) { m.reporter.Load().Refuse(pod, reason, message) },
		Changed: m.nudge,
	}
	reporter := podstatus.New(podstatus.Config{
		Client: m.client, Agent: m.agent, Pods: pods.Start(ctx), Node: self.Object, CRI: nodeFacts(m.cfg, m.facts), Events: m.agent.Events,
	})
	m.reporter.Store(reporter)
	for _, run := range []func(context.Context) error{self.Run, pods.Run, reporter.Run, server.Serve} {
		running.Go(func() error { return run(ctx) })
	}
	running.Go(func() error {
		<-ctx.Done()
		m.client.Close()
		return nil
	})
	return nil
}

// openDoor listens where kubectl's requests come in by way of the API server.
func (m *membership) openDoor() (*kubeletapi.Server, error) {
	ca := m.client.CA
	if path := m.cfg.NodeClientCA; path != "" {
		var err error
		if ca, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("--node-client-ca-file: %w", err)
		}
	}
	used := nodestats.Source{
		Node: nodeName(m.cfg), Pods: m.agent.List, Meter: m.usage, Cgroup: m.sandboxes.Cgroup,
		Layer: m.containers.Layer, EmptyDir: m.volumes().EmptyDir, Images: m.images.Usage, Root: m.cfg.Root, Booted: stats.Booted(),
	}
	return kubeletapi.New(kubeletapi.Config{
		Summary: used.ServeSummary, Resource: used.ServeResource,
		Client: m.client, Node: nodeName(m.cfg), Listen: m.cfg.NodeListen, CertFile: m.cfg.NodeTLSCert, KeyFile: m.cfg.NodeTLSKey,
		ClientCA: ca, Hosts: append(nodeIPs(), hostname()), Pods: m.agent.List, Ended: m.containers.Ended, Sessions: m.streams, Log: m.log,
	})
}

// machine is this machine as the cluster is to know it.
func (m *membership) machine() (registration.Machine, error) {
	labels, err := m.cfg.Labels()
	if err != nil {
		return registration.Machine{}, err
	}
	taints, err := m.cfg.Taints()
	if err != nil {
		return registration.Machine{}, err
	}
	_, text, err := net.SplitHostPort(m.cfg.NodeListen)
	if err != nil {
		return registration.Machine{}, err
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return registration.Machine{}, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(m.cfg.Root, &disk); err != nil {
		return registration.Machine{}, err
	}
	return registration.Machine{
		Name: nodeName(m.cfg), Hostname: hostname(), Labels: labels, Taints: taints, Facts: m.facts, Handlers: m.handlers.List(),
		Disk: int64(disk.Blocks) * disk.Bsize, Port: int32(port),
	}, nil
}

// ready says why no pod can be started, if none can.
func (m *membership) ready(ctx context.Context) error {
	if m.handlers.Missing != nil {
		return m.handlers.Missing
	}
	return m.cni.Status(ctx)
}

// Those images are told whose pull would take longest, as the kubelet does: a
// node is not to be an endless list.
const (
	mostImages = 50
	mostNames  = 5
)

func (m *membership) toldImages() []corev1.ContainerImage {
	var out []corev1.ContainerImage
	for _, i := range m.images.List() {
		names := slices.Concat(i.Digests, i.Tags)
		if len(names) == 0 {
			continue
		}
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), mostNames)], SizeBytes: i.Size})
	}
	slices.SortStableFunc(out, func(a, b corev1.ContainerImage) int {
		if a.SizeBytes != b.SizeBytes {
			return int(min(max(b.SizeBytes-a.SizeBytes, -1), 1))
		}
		return slices.Compare(a.Names, b.Names)
	})
	return out[:min(len(out), mostImages)]
}
