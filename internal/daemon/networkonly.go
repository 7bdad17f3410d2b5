package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/huskd/husk/internal/api"
	"github.com/huskd/husk/internal/api/serviceapi"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/plugin/conflist"
	"github.com/huskd/husk/internal/plugin/rpc"
	"github.com/huskd/husk/internal/version"
)

// runNetworkOnly runs huskd as the pod network of another runtime until ctx ends. That runtime
// calls husk-cni, which calls huskd.
func (d *daemon) runNetworkOnly(ctx context.Context, socket net.Listener) error {
	if err := d.openNetworkOnly(ctx); err != nil {
		return err
	}
	if err := d.network.Reconcile(ctx, nil); err != nil {
		d.log.Error("network: reconciling failed", "error", err)
	}
	text, err := conflist.Text(network.Name, strings.TrimPrefix(d.cfg.Listen, scheme))
	if err != nil {
		return err
	}
	list := conflist.File{Path: filepath.Join(d.cfg.CNIConf, conflist.Name), Content: text, Ready: d.connected, Log: d.log}
	d.log.Info("huskd is serving the pod network of another runtime", "socket", d.cfg.Listen, "version", version.Version, "instance", d.instance)
	err = d.serveNetworkOnly(ctx, socket, list)
	if d.cfg.CNIConf != "" && detached(d.network) {
		err = errors.Join(err, list.Remove())
	}
	return err
}

func (d *daemon) openNetworkOnly(ctx context.Context) error {
	d.metrics = d.newMetrics()
	d.facts = host.Probe(d.cfg.Root)
	openMonitors(d)
	if err := openNetworkServer(d); err != nil {
		return err
	}
	if err := d.openJournal(); err != nil {
		return err
	}
	for range d.journal.All("sandbox/") {
		return fmt.Errorf("huskd has pods of its own in %s: start it without network-only and remove them, or use another root", d.cfg.Root)
	}
	subnets, err := d.cfg.Prefixes()
	if err != nil {
		return err
	}
	if d.nodes, err = openPeering(d, subnets); err != nil {
		return err
	}
	return d.openNetwork(ctx, subnets)
}

// networkMethods are the methods of huskd's API that concern the network.
var networkMethods = []string{"Version", "Info", "NetworkStatus", "RotateKey", "ListPolicies", "ListServices", "ExplainConnection", "ListAttachments", "RetryDebts", "Doctor", "Shutdown"}

func refusal(method string) error {
	if slices.Contains(networkMethods, path.Base(method)) {
		return nil
	}
	return errdefs.ErrFailedPrecondition.WithMessage("huskd runs no pods here: it was started with network-only, as the network of another runtime's pods")
}

const networkStays = "huskd is stopping; pods keep their network"

func (d *daemon) serveNetworkOnly(ctx context.Context, socket net.Listener, list conflist.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(d.metrics.Unary, api.Unary, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := refusal(info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(d.metrics.Stream, api.Stream, func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := refusal(info.FullMethod); err != nil {
				return err
			}
			return next(srv, stream)
		}))
	api.Register(server, api.Config{
		Network: d.network, Nodes: d.nodes.Controller(), Firewall: d.policy.Owner(), Services: &serviceapi.Server{Proxy: d.services}, Explainer: explainer(d), Debts: d.debts, RetryDebts: func(context.Context) error { return nil },
		Doctor: d.examine, Root: d.cfg.Root, State: d.cfg.State, Node: nodeName(d.cfg), Leave: leave(d),
		End: func() {
			d.service.Stopping(networkStays) // before the answer, as in serve
			cancel()
		},
	})
	registerSystem(d, server)
	var running errgroup.Group
	if err := d.serveMetrics(ctx, &running); err != nil {
		return err
	}
	d.nodes.Run(ctx, &running)
	running.Go(func() error { return d.displaced.Run(ctx) })
	d.policy.Run(ctx, &running)
	d.services.Run(ctx, &running)
	running.Go(func() error { return d.network.Watch(ctx) })
	running.Go(func() error { return d.releaseGone(ctx) })
	if d.cfg.CNIConf != "" {
		running.Go(func() error { return list.Keep(ctx) })
	}
	running.Go(func() error {
		d.stopWith(ctx, server, networkStays)
		return nil
	})
	runService(ctx, d, &running)
	err := server.Serve(rpc.Split(socket, d.servePlugin(ctx)))
	cancel()
	return errors.Join(err, running.Wait())
}

// connected returns why a pod can't be attached or can't reach the pods of other nodes.
func (d *daemon) connected(ctx context.Context) error {
	if c := d.nodes.Controller(); c != nil && !c.Status().Known {
		return errdefs.ErrUnavailable.WithMessage("the store of nodes (network-store " + d.cfg.Store + ") has not answered yet")
	}
	return nodeNetwork{d.network.External(), d.nodes, d.displaced}.Status(ctx)
}
