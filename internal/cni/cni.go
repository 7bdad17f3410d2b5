// Package cni owns what sandboxes have of CNI networks: it attaches them by
// the plugins that the node's configuration names, and owes what it could not
// detach until that is done.
//
// Without any configuration, the built-in network does it, and nothing here is
// involved. A configuration names programs, which are run, or plugins that this
// process has itself, in one chain.
//
// Each attachment is journaled before its first plugin runs, with the
// configuration, arguments and capability arguments that it is made with, and
// after each plugin with its result. So DEL is given what ADD was given,
// whatever has become of the configuration, of huskd or of the host since. An
// ADD that fails, or that a crash cut short, is followed by DEL.
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
	// Reconcile releases what isn't live.
	Reconcile(ctx context.Context, live []pod.Attachment) error
	// Status says why no pod can be attached now.
	Status() error
}

// Plugin is a CNI plugin in this process. What it is given and answers is what
// a program would be given in its environment (CNI_…) and on stdin, and answer
// on stdout. Its error may be a *types.Error.
type Plugin func(ctx context.Context, getenv func(string) string, stdin []byte) ([]byte, error)

// Config of the host side of CNI.
type Config struct {
	Instance pod.Instance
	Journal  *journal.Journal
	// State is a directory for what doesn't outlive a boot: the namespaces of
	// sandboxes that are gone but for a debt.
	State string
	// ConfDir has the configurations; empty leaves everything to Builtin.
	ConfDir string
	BinDirs []string // of plugins, the first goes before
	// MaxNetworks is how many of the configured networks a pod is attached to
	// that names none: the first.
	MaxNetworks int
	// CacheDir is where runtimes that use libcni record their attachments.
	CacheDir string
	// Netns is the path of the node's network namespace. Empty is the one that
	// the process is in.
	Netns string
	// Ranges are the addresses that plugins are told to give, until SetRanges.
	Ranges  []netip.Prefix
	Builtin Builtin
	Plugins map[string]Plugin `json:"-"` // by type
	// Timeout bounds one operation on one attachment; 0 is DefaultTimeout.
	Timeout time.Duration
	// Ran, if set, is told of every run of a plugin.
	Ran func(Run) `json:"-"`
	Log *slog.Logger
}

// DefaultTimeout bounds an operation unless Config says otherwise. It is
// shorter than what kubelet waits for a sandbox.
const DefaultTimeout = 90 * time.Second

// Host is the owner. Its methods may be called concurrently.
type Host struct {
	cfg      Config
	plugins  *plugins
	retained retained
	watch    *conf.Watch // nil without ConfDir
	records  journal.Table[record]

	mu          sync.Mutex
	attachments map[string]*record // by key; a value isn't changed once in it
	ranges      []netip.Prefix     // nor is this one

	sandboxes keylock.Locks // held while something is done for a sandbox
	whole     sync.RWMutex  // held for reading by whoever has a sandbox's lock, for writing by GC
	damaged   bool          // a record was unreadable: the attachments aren't all known

	wake       chan struct{} // there is a new debt
	background sync.WaitGroup
	closing    context.Context
	close      context.CancelFunc
}

// state of an attachment, named for what may exist while it is recorded.
type state string

const (
	adding   state = "adding"
	attached state = "attached"
	deleting state = "deleting"
)

// record is what the journal keeps of an attachment: everything that DEL needs.
type record struct {
	Attachment pod.Attachment             `json:"attachment"`
	Network    string                     `json:"network"`
	Conf       json.RawMessage            `json:"conf"` // see conf.Marshal
	Args       [][2]string                `json:"args"`
	Caps       map[string]json.RawMessage `json:"caps,omitempty"`
	State      state                      `json:"state"`
	// Result is what the last plugin answered of those that were run.
	Result   json.RawMessage `json:"result,omitempty"`
	Attached pod.Attached    `json:"attached"`

	// Of a debt.
	Since time.Time `json:"since,omitzero"`
	Tries int       `json:"tries,omitempty"`
	Error string    `json:"error,omitempty"`
	next  time.Time // when it is tried again
}

func key(sandbox, ifName string) string { return sandbox + "/" + ifName }

func (r *record) key() string { return key(r.Attachment.Sandbox, r.Attachment.IfName) }

// New returns the owner of the attachments in the journal, and what was wrong
// with records that are set aside. Call Reconcile next.
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
		instance: cfg.Instance, dirs: cfg.BinDirs, inside: cfg.Plugins,
		run: process.Runner{Netns: cfg.Netns, Log: cfg.Log}, ran: cfg.Ran, life: pod.NewID(), closing: h.closing, versions: map[string]supported{},
	}
	bad := h.records.Load(func(id string, r record) error {
		if id != r.key() {
			return fmt.Errorf("is of %s", r.key())
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

// Close ends the work in the background. Attachments and debts stay.
func (h *Host) Close() {
	h.close()
	h.background.Wait()
}

// Networks tells what is configured.
func (h *Host) Networks() conf.State {
	if h.watch == nil {
		return conf.State{}
	}
	return h.watch.State()
}

// defaults returns the networks of a pod that names none; none means Builtin.
func (h *Host) defaults(s conf.State) []conf.Network {
	return s.Networks[:min(len(s.Networks), max(h.cfg.MaxNetworks, 1))]
}

// Status returns nil if a pod could be attached now, and otherwise why not.
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

// Attachment is one that the journal speaks of.
type Attachment struct {
	pod.Attachment
	Network string
	State   string
	// Of a debt: since when it is one, how often DEL was tried, and what was in
	// the way.
	Since time.Time
	Tries int
	Error string
}

// Owed says whether a is a debt.
func (a Attachment) Owed() bool { return a.State == string(deleting) }

// Attachments returns those of CNI networks, debts too, in the order of their
// sandboxes and interfaces.
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

// of returns a sandbox's attachments, the last interface first.
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

// store journals a record and makes it the attachment's.
func (h *Host) store(r record, write func(string, record) error) error {
	if err := write(r.key(), r); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attachments[r.key()] = &r
	return nil
}

// forget removes the record of an attachment that is no more.
func (h *Host) forget(r *record) error {
	err := h.records.Delete(r.key())
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attachments, r.key())
	return err
}

// enter waits for the sandbox's turn, and for GC to end.
func (h *Host) enter(ctx context.Context, sandbox string) (leave func(), err error) {
	unlock, err := h.sandboxes.Lock(ctx, sandbox)
	if err != nil {
		return nil, fmt.Errorf("wait for another operation on the sandbox: %w", err)
	}
	h.whole.RLock()
	return func() {
		h.whole.RUnlock()
		unlock()
	}, nil
}

// list is the configuration that a record was made with.
func (r *record) list() *libcni.NetworkConfigList {
	list, _ := conf.Unmarshal(r.Conf) // New has refused what can't be read
	return list
}
