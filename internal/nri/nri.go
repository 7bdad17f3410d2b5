// Package nri lets plugins of the Node Resource Interface follow the life of
// pods and containers, adjust containers before they are created, and change
// their limits: https://github.com/containerd/nri. It is the runtime's side of
// it, by way of that project's own adaptation package, for both of the owners
// whose hooks it is.
//
// Calls to plugins run one after another, each within a timeout. While no
// plugin is there an event costs a lock and an entry of a map.
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
	"sync"
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

// Sandboxes are those that plugins are told of.
type Sandboxes interface {
	Get(id string) (sandbox.Status, error)
	List() []sandbox.Status
	Files(st sandbox.Status) sandbox.Files
	Cgroup(st sandbox.Status) string
}

// Containers are those that plugins are told of and change.
type Containers interface {
	List(sandbox string) []container.Status
	Spec(id string) json.RawMessage
	Limit(ctx context.Context, id string, limits *runtimeapi.LinuxContainerResources) error
	Stop(ctx context.Context, id string, grace time.Duration) error
}

// Config is what NRI needs.
type Config struct {
	Socket  string // where plugins register
	Plugins string // directory of plugins to start
	// Required are plugins without which no container is created.
	Required []string
	Node     adjust.Node
	Log      *slog.Logger
}

// confDir has the configuration of plugins that are started, where every
// runtime has it.
const confDir = adaptation.DefaultPluginConfigPath

// patience is how long a plugin may take to answer. NRI's default of 2 s is less
// than one needs that looks at each of a node's pods when it registers.
const patience = 5 * time.Second

// Relay is the runtime's side of NRI.
type Relay struct {
	cfg     Config
	plugins *adaptation.Adaptation
	count   atomic.Int64 // of plugins
	// starting says that plugins of the directory are, which count has afterwards.
	starting atomic.Bool
	failed   atomic.Bool // nobody can register
	changes  changes

	// Those that plugins are told of, set before there are any.
	sandboxes  Sandboxes
	containers Containers

	mu  sync.Mutex
	met map[string]bool // what plugins were told of, by ID, and whether as stopped
}

// New returns NRI without plugins. Its hooks can be used at once.
func New(cfg Config) (*Relay, error) {
	r := &Relay{cfg: cfg, met: map[string]bool{}, changes: changes{last: map[string]chan struct{}{}}}
	logTo(cfg.Log)
	adaptation.SetPluginRequestTimeout(patience)
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
	// Whose socket it is keeps it: the adaptation would take it away.
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

// usable returns the directory of plugins unless the adaptation would stumble
// over a file in it.
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
			log.Error("NRI: no plugin of the directory is started: name each as NN-NAME, or take its x bit away", "file", filepath.Join(dir, f.Name()))
			return ""
		}
	}
	return dir
}

// Start starts the plugins of the directory, tells them what is there, and lets
// others register.
func (r *Relay) Start(sandboxes Sandboxes, running Containers) error {
	r.sandboxes, r.containers = sandboxes, running
	for _, st := range sandboxes.List() {
		if shown(st) {
			r.meet(st.ID)
		}
	}
	for _, st := range running.List("") {
		if st.State.Live() {
			r.meet(st.ID)
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

// Stop ends the plugins that Start has started, and turns the others away.
func (r *Relay) Stop() { r.plugins.Stop() }

// pass holds the door while an event passes: who registers meanwhile is told of
// the event's subject afterwards, as of something that is there. What an event
// makes known must be known before the door is let go.
func (r *Relay) pass() (letGo func()) { return r.plugins.BlockPluginSync().Unblock }

func (r *Relay) meet(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.met[id] = false
}

// stopping says whether plugins are to be told that id is stopped: once, and only
// if they know it.
func (r *Relay) stopping(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	stopped, met := r.met[id]
	if met {
		r.met[id] = true
	}
	return met && !stopped
}

// leaving says whether plugins are to be told that id is gone: once.
func (r *Relay) leaving(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, met := r.met[id]
	delete(r.met, id)
	return met
}

func (r *Relay) knows(id string) (met, stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stopped, met = r.met[id]
	return met, stopped
}

// none says that there is no plugin to tell.
func (r *Relay) none() bool { return r.count.Load() == 0 && !r.starting.Load() }

// after notes how plugins took what has happened already.
func (r *Relay) after(event, id string, err error) {
	if err != nil {
		r.cfg.Log.Warn("NRI: a plugin failed", "event", event, "id", id, "error", err)
	}
}

// refused is an error of plugins as that of the call that they were asked about.
func refused(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if _, answered := err.(interface{ GRPCStatus() *status.Status }); answered {
		return errdefs.ErrFailedPrecondition.WithMessage("an NRI plugin refuses: " + status.Convert(err).Message())
	}
	return errdefs.ErrFailedPrecondition.WithMessage("NRI: " + err.Error())
}
