package daemon

import (
	"context"
	"crypto/tls"
	"log/slog"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/certificate"
	"github.com/huskd/husk/internal/config"
)

// identity are the certificates of the node that the cluster signs.
type identity struct {
	client *certificate.Certificate
	// serving is nil if huskd signs its own or has one from a file.
	serving *certificate.Certificate
	// bootstrap is the client that requests the first client certificate. It is nil if the
	// kubeconfig can be used as it is.
	bootstrap *cluster.Client
	// renewed tells that the kubeconfig's client certificate is huskd's to renew.
	renewed bool
}

func newIdentity(cfg config.Config, log *slog.Logger) (*identity, error) {
	dir := filepath.Join(cfg.Root, "pki")
	id := &identity{}
	var err error
	own := certificate.Config{Node: nodeName(cfg), File: filepath.Join(dir, "client.pem")}
	if cfg.Bootstrap != "" {
		own.Bootstrap = func() (*cluster.Client, error) { return cluster.New(cfg.Bootstrap, log) }
	}
	if id.client, err = certificate.Open(own); err != nil {
		return nil, err
	}
	if cfg.NodeTLSCSR {
		id.serving, err = certificate.Open(certificate.Config{
			Node: nodeName(cfg), File: filepath.Join(dir, "server.pem"), Addresses: func() []string { return append(nodeIPs(cfg), hostname()) },
		})
		if err != nil {
			return nil, err
		}
	}
	id.renewed = certificate.ManagedBy(cfg.Kubeconfig, id.client.File)
	if cfg.Bootstrap == "" {
		return id, nil
	}
	usable, err := certificate.Usable(cfg.Kubeconfig)
	if err != nil || usable {
		return id, err
	}
	id.bootstrap, err = cluster.New(cfg.Bootstrap, log)
	return id, err
}

// join requests the node's client certificate, writes the kubeconfig, and returns the client. It
// returns nil if ctx ends before.
func (i *identity) join(ctx context.Context, cfg config.Config, log *slog.Logger) (*cluster.Client, error) {
	defer i.bootstrap.Close()
	if i.client.Current() == nil {
		log.Info("requesting a client certificate for this node", "server", i.bootstrap.Server)
		i.client.Renew(ctx, i.bootstrap)
	}
	if ctx.Err() != nil {
		return nil, nil
	}
	if err := certificate.WriteKubeconfig(cfg.Kubeconfig, cfg.Bootstrap, i.client.File); err != nil {
		return nil, err
	}
	i.renewed = true
	return cluster.New(cfg.Kubeconfig, log)
}

// renew keeps the certificates valid until ctx ends.
func (i *identity) renew(ctx context.Context, running *errgroup.Group, client *cluster.Client) {
	if i.renewed {
		running.Go(func() error { return i.client.Run(ctx, client) })
	}
	if i.serving != nil {
		running.Go(func() error { return i.serving.Run(ctx, client) })
	}
}

// signed returns the function that returns the signed serving certificate, or nil.
func (i *identity) signed() func() *tls.Certificate {
	if i.serving == nil {
		return nil
	}
	return i.serving.Current
}
