package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/huskd/husk/internal/cluster"
)

// networkServer is the API server of network-kubeconfig, from which the pod network of a huskd that
// is no node learns of the cluster.
type networkServer struct {
	kubeconfig string
	log        *slog.Logger

	mu     sync.Mutex // Invariant: guards the fields below.
	client *cluster.Client
	logged string // why there is no client
}

// openNetworkServer reads the kubeconfig, unless it isn't there yet. It sends no request.
func openNetworkServer(d *daemon) error {
	if d.cfg.NetworkKubeconfig == "" {
		return nil
	}
	d.server = &networkServer{kubeconfig: d.cfg.NetworkKubeconfig, log: d.log}
	if err := d.server.open(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s *networkServer) open() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return nil
	}
	if s.client, err = cluster.New(s.kubeconfig, s.log); err != nil && err.Error() != s.logged {
		s.logged = err.Error()
		s.log.Warn("network: the API server of network-kubeconfig is not known yet; trying again", "error", err)
	}
	return err
}

// reopenTime is how often the kubeconfig is read until that succeeds.
const reopenTime = time.Second

// connect returns the client as soon as the files of the kubeconfig are there, or the error of ctx:
// a kubelet that needs huskd to start may write them later.
func (s *networkServer) connect(ctx context.Context) (*cluster.Client, error) {
	for s.open() != nil {
		select {
		case <-time.After(reopenTime):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.client, nil
}

// close closes the connections. Nothing uses the client any more.
func (s *networkServer) close() {
	if s != nil && s.client != nil {
		s.client.Close()
	}
}

// clusterClient returns how the pod network gets a client of the API server, nil without one.
func clusterClient(d *daemon) func(context.Context) (*cluster.Client, error) {
	switch {
	case d.server != nil:
		return d.server.connect
	case d.membership != nil:
		return d.membership.connect
	}
	return nil
}
