// Package cni attaches sandboxes to the CNI networks that the node's configuration
// defines, and detaches them. Host does so for huskd's pods, and Standalone for the
// commands of husk net. On a node without CNI configuration, Host delegates to the
// built-in network.
//
// The plugins of a network are run in order. A plugin is a program, or a function in
// this process (husk-cni).
//
// An attachment is journaled before its first plugin runs, with its configuration,
// arguments and capability arguments, and again with the result of each plugin. So
// DEL gets the same input as ADD, even if the configuration has changed or huskd or
// the host has restarted since. An ADD that fails, or that a crash interrupts, is
// followed by DEL.
//
// A DEL that fails becomes a debt: it is owed to the plugins and retried until it
// succeeds, also after a restart. GC cleans up what is in no record.
package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/huskd/husk/internal/cni/conf"
	"github.com/huskd/husk/internal/cni/process"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/keylock"
	"github.com/huskd/husk/internal/pod"
)

// Builtin is the network of a node without CNI configuration.
type Builtin interface {
	Attach(ctx context.Context, a pod.Attachment) (*pod.Attached, error)
	Detach(ctx context.Context, a pod.Attachment) error
	// Reconcile detaches sandboxes that are not in live.
	Reconcile(ctx context.Context, live []pod.Attachment) error
	// Status returns an error if no pod can be attached now.
	Status() error
}

// Plugin is a CNI plugin in this process. Like a program, it gets CNI_ variables and
// stdin, and returns what a program writes to stdout. Its error may be a *types.Error.
type Plugin func(ctx context.Context, getenv func(string) string, stdin []byte) ([]byte, error)

// Config configures a Host.
type Config struct {
	Instance pod.Instance
	Journal  *journal.Journal
	// State is a directory for runtime state, which a reboot may delete: the network
	// namespaces retained for debts.
	State string
	// ConfDir is the directory of configurations. If it is empty, Builtin does everything.
	ConfDir string
	BinDirs []string // directories of plugins, searched in order
	// MaxNetworks is how many of the configured networks, in order, every pod is
	// attached to.
	MaxNetworks int
	// CacheDir is where other runtimes, which use libcni, record their attachments.
	CacheDir string
	// Netns is the path of the node's network namespace. If it is empty, that is the one
	// of this process.
	Netns string
	// Ranges are the pod CIDRs passed to plugins, until SetRanges is called.
	Ranges  []netip.Prefix
	Builtin Builtin
	Plugins map[string]Plugin `json:"-"` // by type
	// Timeout bounds each operation on an attachment; 0 is DefaultTimeout.
	Timeout time.Duration
	// Ran, if set, is called after every run of a plugin.
	Ran func(Run) `json:"-"`
	Log *slog.Logger
}

// DefaultTimeout is the default of Config.Timeout. It is shorter than kubelet's timeout
// for a sandbox.
const DefaultTimeout = 90 * time.Second

// Host owns the attachments of sandboxes. Its methods are safe for concurrent use.
type Host struct {
	cfg      Config
	plugins  *plugins
	retained retained
	watch    *conf.Watch // nil without ConfDir
	records  journal.Table[record]

	mu          sync.Mutex
	attachments map[string]*record // by key. Invariant: a record in it is not modified
	ranges      []netip.Prefix     // Invariant: the slice is not modified

	sandboxes keylock.Locks // held during an operation on a sandbox
	gcLock    sync.RWMutex  // held for reading with a lock of sandboxes, for writing by GC
	damaged   bool          // a record was unreadable, so not all attachments are known

	wake       chan struct{} // signals a new debt
	background sync.WaitGroup
	closing    context.Context
	close      context.CancelFunc
}

// state is the state of an attachment. It is recorded before the operation starts.
type state string

const (
	adding   state = "adding"
	attached state = "attached"
	deleting state = "deleting"
)

// record is the journal's record of an attachment: everything that DEL needs.
type record struct {
	Attachment pod.Attachment             `json:"attachment"`
	Network    string                     `json:"network"`
	Conf       json.RawMessage            `json:"conf"` // see conf.Marshal
	Args       [][2]string                `json:"args"`
	Caps       map[string]json.RawMessage `json:"caps,omitempty"`
	State      state                      `json:"state"`
	// Result is the result of the last plugin that succeeded.
	Result   json.RawMessage `json:"result,omitempty"`
	Attached pod.Attached    `json:"attached"`

	// Set for debts.
	Since   time.Time `json:"since,omitzero"`
	Tries   int       `json:"tries,omitempty"`
	Error   string    `json:"error,omitempty"`
	retryAt time.Time
}

func key(sandbox, ifName string) string { return sandbox + "/" + ifName }

func (r *record) key() string { return key(r.Attachment.Sandbox, r.Attachment.IfName) }

// New returns the Host of the attachments in the journal, and the errors of records
// that were set aside. Call Reconcile next.
func New(cfg Config) (*Host, []error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	h := &Host{
		cfg:         cfg,
		records:     journal.NewTable[record](cfg.Journal, "cni"),
		retained:    retained(filepath.Join(cfg.State, "cni")),
		attachments: map[string]*record{},
		ranges:      cfg.loadRanges(),
		wake:        make(chan struct{}, 1),
	}
	h.closing, h.close = context.WithCancel(context.Background())
	h.plugins = &plugins{
		instance: cfg.Instance, dirs: cfg.BinDirs, inProcess: cfg.Plugins,
		runner: process.Runner{Netns: cfg.Netns, Log: cfg.Log}, ran: cfg.Ran, runID: pod.NewID(), closing: h.closing, versions: map[string]supported{},
	}
	bad := h.records.Load(func(id string, r record) error {
		if id != r.key() {
			return fmt.Errorf("is the record of %s", r.key())
		}
		if _, err := conf.Unmarshal(r.Conf); err != nil {
			return err
		}
		h.attachments[id] = &r
		return nil
	})
	h.damaged = len(bad) > 0
	if cfg.ConfDir != "" {
		h.watch = conf.NewWatch(cfg.ConfDir, h.plugins.usable, cfg.Log)
		h.background.Go(func() { h.watch.Run(h.closing) })
	}
	return h, bad
}

// Close stops the background work. Attachments and debts stay.
func (h *Host) Close() {
	h.close()
	h.background.Wait()
}

// Networks returns the configured networks.
func (h *Host) Networks() conf.State {
	if h.watch == nil {
		return conf.State{}
	}
	return h.watch.State()
}

// defaults returns the networks that every pod is attached to; none means Builtin.
func (h *Host) defaults(s conf.State) []conf.Network {
	return s.Networks[:min(len(s.Networks), max(h.cfg.MaxNetworks, 1))]
}

// Status returns an error if no pod can be attached now.
func (h *Host) Status(ctx context.Context) error {
	now := h.Networks()
	if now.Err != nil {
		return now.Err
	}
	networks := h.defaults(now)
	if len(networks) == 0 {
		return h.cfg.Builtin.Status()
	}
	for _, n := range networks {
		if err := h.plugins.status(ctx, n.List); err != nil {
			return err
		}
	}
	return nil
}

// Attachment is a recorded attachment to a CNI network.
type Attachment struct {
	pod.Attachment
	Network string
	State   string
	// For a debt: since when it is owed, how often DEL was tried, and its last error.
	Since time.Time
	Tries int
	Error string
}

// Owed reports whether a is a debt.
func (a Attachment) Owed() bool { return a.State == string(deleting) }

// Attachments returns all recorded attachments, including debts, sorted by sandbox and
// interface.
func (h *Host) Attachments() []Attachment {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []Attachment
	for _, r := range h.attachments {
		list = append(list, Attachment{r.Attachment, r.Network, string(r.State), r.Since, r.Tries, r.Error})
	}
	slices.SortFunc(list, func(a, b Attachment) int {
		return strings.Compare(key(a.Sandbox, a.IfName), key(b.Sandbox, b.IfName))
	})
	return list
}

func (h *Host) find(k string) *record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attachments[k]
}

// of returns a sandbox's attachments in reverse order of the interfaces' names.
func (h *Host) of(sandbox string) []*record {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*record
	for _, r := range h.attachments {
		if r.Attachment.Sandbox == sandbox {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *record) int { return strings.Compare(b.key(), a.key()) })
	return list
}

// store journals a record and replaces the attachment's record by it.
func (h *Host) store(r record, write func(string, record) error) error {
	if err := write(r.key(), r); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attachments[r.key()] = &r
	return nil
}

// forget removes the record of a deleted attachment.
func (h *Host) forget(r *record) error {
	err := h.records.Delete(r.key())
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attachments, r.key())
	return err
}

// enter locks a sandbox, and waits for GC to end.
func (h *Host) enter(ctx context.Context, sandbox string) (leave func(), err error) {
	unlock, err := h.sandboxes.Lock(ctx, sandbox)
	if err != nil {
		return nil, fmt.Errorf("wait for another operation on the sandbox: %w", err)
	}
	h.gcLock.RLock()
	return func() {
		h.gcLock.RUnlock()
		unlock()
	}, nil
}

// list returns the configuration of a record.
func (r *record) list() *libcni.NetworkConfigList {
	list, _ := conf.Unmarshal(r.Conf) // New refuses what can't be parsed
	return list
}
