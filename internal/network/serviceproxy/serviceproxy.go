// Package serviceproxy runs Services as the configuration says: it connects the owner, package
// balancer, with where Services come from and the kernel. In a cluster they come from its API
// server, unless kube-proxy leads their connections, and on a node without one from manifests.
package serviceproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/network/balancer"
	"github.com/huskd/husk/internal/network/preflight"
	"github.com/huskd/husk/internal/network/service/accept"
	"github.com/huskd/husk/internal/network/service/apisource"
	"github.com/huskd/husk/internal/network/service/declared"
	"github.com/huskd/husk/internal/network/servicetable"
	"github.com/huskd/husk/internal/pod"
)

// Config configures a Proxy.
type Config struct {
	config.PodNetwork
	Instance pod.Instance
	// Connect returns a client of the API server, see apisource. It is nil without one. Then
	// Manifests say which Services there are, unless Manifests.Journal is nil.
	Connect   func(context.Context) (*cluster.Client, error)
	Manifests declared.Config
	Node      string
	Log       *slog.Logger

	nodePorts []netip.Prefix
}

// Proxy leads the connections of Services to their endpoints, unless another proxy does.
type Proxy struct {
	balancer *balancer.Balancer // nil if another proxy does
	table    *servicetable.Table
	declared *declared.Services // nil unless manifests say which Services there are
	auto     bool               // whether kube-proxy may lead connections instead
	// note says that kube-proxy has rules on the node, or is empty.
	note string
}

// Open opens what leads connections. If huskd doesn't, it removes the rules that a former one has
// left.
func Open(cfg Config) (*Proxy, error) {
	table, err := servicetable.Open("", cfg.Instance, nil)
	if err != nil {
		return nil, err
	}
	p := &Proxy{table: table, auto: cfg.Proxy == config.ProxyAuto}
	if cfg.nodePorts, err = cfg.NodePortPrefixes(); err != nil {
		return nil, errors.Join(fmt.Errorf("node-port-addresses: %w", err), table.Close())
	}
	switch {
	case cfg.Proxy == config.ProxyOff:
	case cfg.Connect != nil:
		err = p.openCluster(cfg)
	case cfg.Manifests.Journal != nil:
		err = p.openManifests(cfg)
	}
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	if p.balancer == nil {
		return p, table.Teardown()
	}
	return p, nil
}

func (p *Proxy) openCluster(cfg Config) error {
	other, err := preflight.KubeProxy()
	switch {
	case err != nil:
		return err
	case other != "" && cfg.Proxy == config.ProxyOn:
		cfg.Log.Warn(besides(other))
	case other != "":
		p.note = leftTo(other)
		cfg.Log.Warn(p.note)
		return nil
	}
	source := &apisource.Source{
		Connect: cfg.Connect, Node: cfg.Node,
		Mistaken: func(p accept.Problem) { cfg.Log.Warn("services: " + p.String()) },
	}
	p.balancer = balancer.New(balancer.Config{Source: source, Kernel: p.table, Log: cfg.Log, NodePorts: cfg.nodePorts})
	cfg.Log.Info("services: huskd leads the connections of the cluster's Services")
	return nil
}

func (p *Proxy) openManifests(cfg Config) (err error) {
	of := cfg.Manifests
	of.Node, of.Log = cfg.Node, cfg.Log
	of.Places, of.Listener = preflight.Places, preflight.Listener
	if of.Subnets, err = cfg.ServicePrefixes(); err != nil {
		return fmt.Errorf("service-subnets: %w", err)
	}
	if p.declared, err = declared.New(of); err != nil {
		return err
	}
	for _, problem := range p.declared.Problems() {
		cfg.Log.Warn("services: " + problem)
	}
	p.balancer = balancer.New(balancer.Config{Source: p.declared, Kernel: p.table, Log: cfg.Log, NodePorts: cfg.nodePorts})
	return nil
}

func leftTo(other string) string {
	return fmt.Sprintf("services: huskd leaves them to kube-proxy, which has rules on this node (%s): end it, run kube-proxy --cleanup and restart huskd, or set service-proxy to off", other)
}

func besides(other string) string {
	return fmt.Sprintf("services: kube-proxy has rules on this node beside huskd's (%s): end it and run kube-proxy --cleanup, or set service-proxy to off", other)
}

// Problems says why Services are not in force, or in force twice.
func (p *Proxy) Problems() (out []string) {
	if p.note != "" {
		return []string{p.note}
	}
	if p.balancer == nil {
		return nil
	}
	problem, other := p.balancer.Problem(), ""
	if p.declared == nil { // the Services of manifests are not kube-proxy's
		// It may have been started since.
		other, _ = preflight.KubeProxy()
	} else {
		out = p.declared.Problems()
	}
	if other != "" && p.auto && errdefs.IsPermissionDenied(problem) {
		return []string{leftTo(other)}
	}
	if problem != nil {
		out = append(out, problem.Error())
	}
	if other != "" {
		out = append(out, besides(other))
	}
	return out
}

// Declared returns the owner of the Services of manifests. It is nil if there is none.
func (p *Proxy) Declared() *declared.Services {
	if p == nil {
		return nil
	}
	return p.declared
}

// Balancer returns the owner of the rules. It is nil if another proxy leads connections.
func (p *Proxy) Balancer() *balancer.Balancer {
	if p == nil {
		return nil
	}
	return p.balancer
}

// Load adopts the recorded Services. It sets unreadable records aside and returns their errors.
func (p *Proxy) Load() []error {
	if d := p.Declared(); d != nil {
		return d.Load()
	}
	return nil
}

// Declare takes what a source of manifests declares.
func (p *Proxy) Declare(set source.Set) {
	if d := p.Declared(); d != nil {
		d.Declare(set)
	}
}

// PodChanged says that the node's pods may have changed. It doesn't block.
func (p *Proxy) PodChanged() {
	if d := p.Declared(); d != nil {
		d.PodChanged()
	}
}

// Taken returns an error if a Service has a port of the node that a pod asks for.
func (p *Proxy) Taken(m pod.PortMapping) error {
	if d := p.Declared(); d != nil {
		return d.Taken(m)
	}
	return nil
}

// Effective returns the Services of manifests, with what they got.
func (p *Proxy) Effective() []*corev1.Service {
	if d := p.Declared(); d != nil {
		return d.Effective()
	}
	return nil
}

// Run leads connections until ctx ends. The rules stay. The Services of manifests are known when it
// returns.
func (p *Proxy) Run(ctx context.Context, running *errgroup.Group) {
	if p.balancer == nil {
		return
	}
	if p.declared != nil {
		p.declared.Start()
	}
	running.Go(func() error { return p.balancer.Run(ctx) })
}

// Teardown removes the rules.
func (p *Proxy) Teardown() error {
	if p == nil {
		return nil
	}
	return p.table.Teardown()
}

// Close closes the sockets. The rules stay.
func (p *Proxy) Close() error {
	if p == nil {
		return nil
	}
	return p.table.Close()
}
