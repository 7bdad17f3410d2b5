package daemon

import (
	"context"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/logind"
)

// Reload says when and how the configuration is read again.
type Reload struct {
	Signals <-chan os.Signal
	Parse   func() (config.Config, error)
}

// runService tells the service manager that huskd serves, feeds its watchdog, and reloads the
// configuration on each signal, until ctx ends.
func runService(ctx context.Context, d *daemon, running *errgroup.Group) {
	d.service.Ready("serving " + d.cfg.Listen)
	running.Go(func() error {
		return d.service.Watch(ctx, func(ctx context.Context) error { return answers(ctx, d.cfg) })
	})
	running.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-d.reloads.Signals:
				d.service.Reloading()
				reload(d)
				d.service.Ready("serving " + d.cfg.Listen)
			}
		}
	})
}

// answers returns an error unless huskd answers a request over its socket. That takes the locks of
// all pods.
func answers(ctx context.Context, cfg config.Config) error {
	conn, err := grpc.NewClient(cfg.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := huskv1.NewHuskClient(conn)
	if cfg.NetworkOnly {
		_, err = client.ListAttachments(ctx, &huskv1.ListAttachmentsRequest{})
	} else {
		_, err = client.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
	}
	return err
}

// reload reads the configuration again. It applies the log level, and says what takes effect only
// at the next start. A bad configuration changes nothing.
func reload(d *daemon) {
	cfg, err := d.reloads.Parse()
	if err != nil {
		d.log.Error("the configuration is not reloaded", "error", err)
		return
	}
	_ = checkDriver(&cfg, d.facts, d.log)                     // so that what the host lacks is no change
	_ = d.logOutput.level.UnmarshalText([]byte(cfg.LogLevel)) // config has checked it
	d.log.Info("the configuration is reloaded", "log-level", cfg.LogLevel)
	logKubelet(cfg, d.log)
	if changed := changedKeys(d.cfg, cfg); len(changed) > 0 {
		d.log.Warn("these keys of the configuration have changed and take effect when huskd is restarted; pods keep running meanwhile", "keys", strings.Join(changed, " "))
	}
}

// changedKeys returns the keys whose new values a reload doesn't apply.
func changedKeys(before, now config.Config) (changed []string) {
	had, has := before.Values(), now.Values()
	for _, key := range slices.Sorted(maps.Keys(has)) {
		if key != "log-level" && had[key] != has[key] {
			changed = append(changed, key)
		}
	}
	if !reflect.DeepEqual(before.Runtimes, now.Runtimes) {
		changed = append(changed, "runtimes")
	}
	if before.Tracing != now.Tracing {
		changed = append(changed, "tracing")
	}
	return changed
}

// errGoingDown is why no pod is started once the machine goes down, in the kubelet's words.
var errGoingDown = errdefs.ErrUnavailable.WithMessage("node is shutting down")

// delayShutdown delays a poweroff or reboot of the machine until the pods have stopped. If that is
// cancelled after that, huskd fails: systemd starts it again, and so the pods.
func delayShutdown(ctx context.Context, d *daemon, running *errgroup.Group, end func()) {
	total, critical := d.cfg.Periods()
	if total == 0 {
		return
	}
	inhibitor := logind.Inhibitor{
		Delay: total, ConfDir: logind.ConfDir, Log: d.log,
		Stop: func(ctx context.Context) {
			d.goingDown.Store(true)
			if d.membership != nil {
				if refresh := d.membership.refresh.Load(); refresh != nil {
					(*refresh)() // the node is not ready any more
				}
			}
			err := d.agent.Drain(ctx, agent.Budget{Total: total, Critical: critical}, func(p agent.Pod, err error) {
				d.log.Info("a pod is stopped because the machine goes down", "pod", p.Name(), "error", err)
			})
			if err != nil {
				d.log.Error("some pods are not stopped", "error", err)
			}
		},
	}
	running.Go(func() error {
		err := inhibitor.Run(ctx)
		if err != nil {
			end()
		}
		return err
	})
}
