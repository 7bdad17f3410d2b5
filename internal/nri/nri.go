// Package nri is the runtime's side of the Node Resource Interface, based on its
// adaptation package: https://github.com/containerd/nri. Its plugins are notified of the
// lifecycle of pods and containers, adjust containers before they are created, and change
// their limits. The package implements the hooks of sandboxes and of containers.
//
// Plugins are called one after another, each with a timeout. Without plugins, an event
// costs a lock and a map entry.
package nri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/nri/adjust"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/version"
)

// Sandboxes has the sandboxes that plugins see.
type Sandboxes interface {
	Get(id string) (sandbox.Status, error)
	List() []sandbox.Status
	Files(st sandbox.Status) sandbox.Files
	Cgroup(st sandbox.Status) string
}

// Containers has the containers that plugins see and change.
type Containers interface {
	List(sandbox string) []container.Status
	Spec(id string) json.RawMessage
	Limit(ctx context.Context, id string, limits *runtimeapi.LinuxContainerResources) error
	Stop(ctx context.Context, id string, grace time.Duration) error
}

// Config configures a Relay.
type Config struct {
	Socket  string // where plugins register
	Plugins string // directory of plugins that Start starts
	// Required are plugins that must have registered before any container is created.
	Required []string
	Node     adjust.Node
	Log      *slog.Logger
}

// confDir has the configurations of the plugins that Start starts. It is the same for every
// runtime.
const confDir = adaptation.DefaultPluginConfigPath

// pluginTimeout is how long a plugin may take to answer. NRI's default of 2 s is too short
// for a plugin that examines all pods of a node when it registers.
const pluginTimeout = 5 * time.Second

// Relay is the runtime's side of NRI.
type Relay struct {
	cfg     Config
	plugins *adaptation.Adaptation
	count   atomic.Int64 // number of plugins
	// starting is true while Start starts plugins, which count doesn't include yet.
	starting atomic.Bool
	failed   atomic.Bool // plugins can't register
	changes  changes

	announced announcements
	objects   objects // set by Start, before there are plugins
}

// New returns NRI without plugins. Its hooks can be used at once.
func New(cfg Config) (*Relay, error) {
	r := &Relay{cfg: cfg, announced: announcements{stopped: map[string]bool{}}, changes: changes{last: map[string]chan struct{}{}}}
	logTo(cfg.Log)
	adaptation.SetPluginRequestTimeout(pluginTimeout)
	options := []adaptation.Option{
		adaptation.WithSocketPath(cfg.Socket),
		adaptation.WithPluginPath(usable(cfg.Plugins, cfg.Log)),
		adaptation.WithPluginConfigPath(confDir),
		adaptation.WithMetrics(counter{r}),
		adaptation.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(r.answers)}, []ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(r.requests)}),
	}
	if len(cfg.Required) > 0 {
		options = append(options, adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: true, RequiredPlugins: cfg.Required}))
	}
	// Don't take another runtime's socket, as the adaptation would.
	if conn, err := net.Dial("unix", cfg.Socket); err == nil {
		_ = conn.Close()
		cfg.Log.Error("NRI: another runtime has the socket, so no plugin can register here: name another by --nri-socket", "socket", cfg.Socket)
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	var err error
	if r.plugins, err = adaptation.New("husk", version.Version, r.synchronize, r.unsolicited, options...); err != nil {
		return nil, fmt.Errorf("NRI: %w", err)
	}
	return r, nil
}

// usable returns dir, or "" if the adaptation would fail on a file in it.
func usable(dir string, log *slog.Logger) string {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Error("NRI: no plugin is started", "error", err)
		return ""
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil || f.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		if _, _, err := api.ParsePluginName(f.Name()); err != nil {
			log.Error("NRI: no plugin of the directory is started: name each NN-NAME, or remove its x permission", "file", filepath.Join(dir, f.Name()))
			return ""
		}
	}
	return dir
}

// Start starts the plugins of the directory, sends them the existing pods and containers, and
// lets other plugins register.
func (r *Relay) Start(sandboxes Sandboxes, running Containers) error {
	r.objects = objects{sandboxes: sandboxes, containers: running, log: r.cfg.Log}
	for _, st := range sandboxes.List() {
		if visible(st) {
			r.announced.add(st.ID)
		}
	}
	for _, st := range running.List("") {
		if st.State.Live() {
			r.announced.add(st.ID)
		}
	}
	r.starting.Store(true)
	defer r.starting.Store(false)
	if err := r.plugins.Start(); err != nil {
		r.failed.Store(true)
		return fmt.Errorf("NRI: %w", err)
	}
	return nil
}

// Stop stops the plugins that Start has started, and disconnects the others.
func (r *Relay) Stop() { r.plugins.Stop() }

// blockSync keeps plugins from registering during an event. A plugin that registers
// afterwards sees the event's subject as existing. So an event must add to announced before
// it calls unblock.
func (r *Relay) blockSync() (unblock func()) { return r.plugins.BlockPluginSync().Unblock }

// noPlugins reports whether there is no plugin to notify.
func (r *Relay) noPlugins() bool { return r.count.Load() == 0 && !r.starting.Load() }

// logFailure logs the error of plugins about an event that has already happened.
func (r *Relay) logFailure(event, id string, err error) {
	if err != nil {
		r.cfg.Log.Warn("NRI: a plugin failed", "event", event, "id", id, "error", err)
	}
}

// refusal converts an error of plugins to one of the call that they were asked about.
func refusal(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if _, answered := err.(interface{ GRPCStatus() *status.Status }); answered {
		return errdefs.ErrFailedPrecondition.WithMessage("an NRI plugin refuses: " + status.Convert(err).Message())
	}
	return errdefs.ErrFailedPrecondition.WithMessage("NRI: " + err.Error())
}
