package daemon

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/network/balancer"
	"github.com/huskd/husk/internal/network/service/accept"
	"github.com/huskd/husk/internal/network/service/apisource"
	"github.com/huskd/husk/internal/network/servicetable"
)

// services lead the connections of Services to their endpoints, unless another proxy does.
type services struct {
	balancer *balancer.Balancer // nil if another proxy does
	table    *servicetable.Table
	// note says that kube-proxy has rules on the node, or is empty.
	note string
}

// openServices opens them. If huskd doesn't lead connections, it removes the rules that a former
// one has left.
func openServices(d *daemon) (*services, error) {
	table, err := servicetable.Open("", d.instance, nil)
	if err != nil {
		return nil, err
	}
	s := &services{table: table}
	wanted := d.membership != nil && d.cfg.Proxy != config.ProxyOff && (!d.cfg.NetworkOnly || d.cfg.Proxy == config.ProxyOn)
	if wanted {
		other, err := servicetable.OtherProxy()
		switch {
		case err != nil:
			return nil, errors.Join(err, table.Close())
		case other != "" && d.cfg.Proxy == config.ProxyOn:
			d.log.Warn(besides(other))
		case other != "":
			s.note = fmt.Sprintf("services: huskd leaves them to kube-proxy, which has rules on this node (%s): end it, run kube-proxy --cleanup and restart huskd, or set service-proxy to off", other)
			d.log.Warn(s.note)
			wanted = false
		}
	}
	if !wanted {
		return s, table.Teardown()
	}
	source := &apisource.Source{
		Connect: d.membership.connect, Node: nodeName(d.cfg),
		Mistaken: func(p accept.Problem) { d.log.Warn("services: " + p.String()) },
	}
	s.balancer = balancer.New(balancer.Config{Source: source, Kernel: table, Log: d.log})
	return s, nil
}

func besides(other string) string {
	return fmt.Sprintf("services: kube-proxy has rules on this node beside huskd's (%s): end it and run kube-proxy --cleanup, or set service-proxy to off", other)
}

// Problems says why Services are not in force, or in force twice.
func (s *services) Problems() (out []string) {
	if s.note != "" {
		return []string{s.note}
	}
	if s.balancer == nil {
		return nil
	}
	if err := s.balancer.Problem(); err != nil {
		out = append(out, err.Error())
	}
	// kube-proxy may have been started since.
	if other, err := servicetable.OtherProxy(); err == nil && other != "" {
		out = append(out, besides(other))
	}
	return out
}

// Run leads connections until ctx ends. The rules stay.
func (s *services) Run(ctx context.Context, running *errgroup.Group) {
	if s.balancer != nil {
		running.Go(func() error { return s.balancer.Run(ctx) })
	}
}

// Teardown removes the rules.
func (s *services) Teardown() error {
	if s == nil {
		return nil
	}
	return s.table.Teardown()
}

// Close closes the sockets. The rules stay.
func (s *services) Close() error {
	if s == nil {
		return nil
	}
	return s.table.Close()
}
