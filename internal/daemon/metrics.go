package daemon

import (
	"context"
	"fmt"
	"iter"
	"net"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/dns/nameserver"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/metrics"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/sandbox"
)

// newMetrics returns the metrics. The owners that it reads don't exist yet: they are read on each
// scrape. Some never do with network-only.
func (d *daemon) newMetrics() *metrics.Metrics {
	if d.cfg.NetworkOnly {
		return metrics.New(metrics.Sources{
			Sandboxes:  func() iter.Seq[*sandbox.Status] { return slices.Values([]*sandbox.Status{}) },
			Containers: func() iter.Seq[*container.Status] { return slices.Values([]*container.Status{}) },
			Images:     func() []image.Image { return nil },
			Refused:    func() int { return 0 },
			Debts:      func() int { return len(d.debts()) },
			Dropped:    func() ([]network.Dropped, error) { return d.network.Paths().Dropped() },
			Tracked:    func() (network.Connections, error) { return d.network.Connections() },
			Nodes:      d.nodesStatus,
			Policy:     d.policyReport,
		})
	}
	return metrics.New(metrics.Sources{
		Sandboxes:  func() iter.Seq[*sandbox.Status] { return d.sandboxes.Views() }, // made later
		Containers: func() iter.Seq[*container.Status] { return d.containers.Views() },
		Images:     func() []image.Image { return d.images.List() },
		Refused:    func() int { return len(d.manifests.Load().Report().Problems) },
		Debts:      func() int { return len(d.debts()) },
		Dropped:    func() ([]network.Dropped, error) { return d.network.Paths().Dropped() },
		Tracked:    func() (network.Connections, error) { return d.network.Connections() },
		Nodes:      d.nodesStatus,
		Policy:     d.policyReport,
		Names:      func() nameserver.Usage { return d.names.usage() },
	})
}

func (d *daemon) nodesStatus() nodes.Status {
	if c := d.nodes.Controller(); c != nil {
		return c.Status()
	}
	return nodes.Status{}
}

func (d *daemon) policyReport() firewall.Report {
	if f := d.policy.Owner(); f != nil {
		return f.Report(false)
	}
	return firewall.Report{}
}

// serveMetrics serves the metrics until ctx ends, if that is configured.
func (d *daemon) serveMetrics(ctx context.Context, running *errgroup.Group) error {
	if d.cfg.Metrics == "" {
		return nil
	}
	listener, err := net.Listen("tcp", d.cfg.Metrics)
	if err != nil {
		return fmt.Errorf("--metrics-listen: %w", err)
	}
	running.Go(func() error { return d.metrics.Serve(ctx, listener) })
	return nil
}
