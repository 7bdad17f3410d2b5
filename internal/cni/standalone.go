package cni

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/cni/conf"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/pod"
)

// Standalone runs single CNI operations on any network namespace, without huskd. It
// records its attachments in a journal of its own.
type Standalone struct {
	host    *Host
	journal *journal.Journal
}

// OpenStandalone opens the journal in dir. If another process has it open, it waits
// until ctx ends.
func OpenStandalone(ctx context.Context, dir string, cfg Config) (*Standalone, error) {
	for {
		j, _, err := journal.Open(dir)
		if err == nil {
			cfg.Journal = j
			h, bad := New(cfg)
			for _, err := range bad {
				h.cfg.Log.Warn("cni: a record was set aside", "error", err)
			}
			return &Standalone{h, j}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Close closes the journal. Attachments stay.
func (s *Standalone) Close() error {
	s.host.Close()
	return s.journal.Close()
}

// Target names the network, namespace and interface of an operation.
type Target struct {
	Network string
	Netns   string // path; need not exist for Del
	IfName  string
	Args    [][2]string
	Caps    map[string]json.RawMessage // by capability
}

// ContainerID returns the CNI_CONTAINERID for the namespace.
func (t Target) ContainerID() string {
	sum := sha256.Sum256([]byte(t.Netns))
	return "husk-net-" + hex.EncodeToString(sum[:10])
}

// Networks returns the configured networks.
func (s *Standalone) Networks() conf.State { return s.host.Networks() }

// Attachments returns the attachments that Standalone has made, including debts.
func (s *Standalone) Attachments() []Attachment { return s.host.Attachments() }

// Validate reads a configuration file and checks that its network is usable.
func (s *Standalone) Validate(file string) (*libcni.NetworkConfigList, error) {
	list, err := conf.Read(file)
	if err == nil {
		err = s.host.plugins.usable(list)
	}
	return list, err
}

func (s *Standalone) network(name string) (*libcni.NetworkConfigList, error) {
	now := s.Networks()
	if n, ok := now.Network(name); ok {
		return n.List, nil
	}
	if now.Err != nil {
		return nil, now.Err
	}
	var names []string
	for _, n := range now.Networks {
		names = append(names, n.List.Name)
	}
	return nil, fmt.Errorf("no network %s is configured in %s, only: %s", name, s.host.cfg.ConfDir, strings.Join(names, ", "))
}

// record returns the record of a target: the existing one, or one for a new attachment.
func (s *Standalone) record(t Target) (record, error) {
	id := t.ContainerID()
	if r := s.host.find(key(id, t.IfName)); r != nil {
		if r.Network != t.Network {
			return *r, fmt.Errorf("%s of %s is attached to network %s: detach it first", t.IfName, t.Netns, r.Network)
		}
		return *r, nil
	}
	list, err := s.network(t.Network)
	if err != nil {
		return record{}, err
	}
	data, err := conf.Marshal(list)
	a := pod.Attachment{Sandbox: id, Netns: t.Netns, IfName: t.IfName, Pod: pod.Ref{Namespace: "standalone", Name: t.Netns}}
	return record{Attachment: a, Network: t.Network, Conf: data, Args: t.Args, Caps: t.Caps}, err
}

// Add attaches a target and returns the result. It is idempotent. If it fails, it runs
// DEL.
func (s *Standalone) Add(ctx context.Context, t Target) (json.RawMessage, error) {
	r, err := s.record(t)
	if err != nil {
		return nil, err
	}
	leave, err := s.host.enter(ctx, t.ContainerID())
	if err != nil {
		return nil, err
	}
	defer leave()
	if r.State == attached {
		return r.Result, nil
	}
	if r.State != "" {
		if err := s.host.del(ctx, &r, s.host.cfg.Timeout); err != nil {
			return nil, fmt.Errorf("its previous attachment can't be deleted: %w", err)
		}
		if r, err = s.record(t); err != nil {
			return nil, err
		}
	}
	r.State = adding
	if err := s.host.add(ctx, &r); err != nil {
		if delErr := s.host.del(ctx, &r, s.host.cfg.Timeout); delErr != nil {
			err = fmt.Errorf("%w; DEL failed too and is owed: %w", err, delErr)
		}
		return nil, err
	}
	return r.Result, nil
}

// Del runs DEL for a target, even if that isn't recorded. If it fails for a recorded one,
// that becomes a debt.
func (s *Standalone) Del(ctx context.Context, t Target) error {
	r, err := s.record(t)
	if err != nil {
		return err
	}
	leave, err := s.host.enter(ctx, t.ContainerID())
	if err != nil {
		return err
	}
	defer leave()
	if r.State != "" {
		return s.host.del(ctx, &r, s.host.cfg.Timeout)
	}
	r.Attachment.Netns = s.host.retained.find(r.Attachment)
	return s.host.plugins.del(ctx, &r)
}

// Check runs CHECK for an attachment.
func (s *Standalone) Check(ctx context.Context, t Target) error {
	r, err := s.record(t)
	if err == nil && r.State != attached {
		err = fmt.Errorf("%s of %s was not attached to network %s by husk net", t.IfName, t.Netns, t.Network)
	}
	if err != nil {
		return err
	}
	return s.host.plugins.check(ctx, &r)
}

// Status returns an error if nothing can be attached to a network now.
func (s *Standalone) Status(ctx context.Context, network string) error {
	list, err := s.network(network)
	if err != nil {
		return err
	}
	return s.host.plugins.status(ctx, list)
}

// PluginVersions are the CNI versions that a plugin supports.
type PluginVersions struct {
	Plugin   string   `json:"plugin"`
	Versions []string `json:"versions"`
}

// Versions returns the versions that the plugins of a network support.
func (s *Standalone) Versions(network string) ([]PluginVersions, error) {
	list, err := s.network(network)
	if err != nil {
		return nil, err
	}
	var out []PluginVersions
	for _, plugin := range list.Plugins {
		known := s.host.plugins.supports(list, plugin)
		if known.err != nil {
			return nil, known.err
		}
		out = append(out, PluginVersions{plugin.Network.Type, known.versions})
	}
	return out, nil
}

// GC runs GC of a network's plugins: they remove all resources of attachments that are
// not in valid.
func (s *Standalone) GC(ctx context.Context, network string, valid []types.GCAttachment) error {
	list, err := s.network(network)
	switch {
	case err != nil:
		return err
	case list.DisableGC:
		return fmt.Errorf("network %s has disableGC", network)
	case !atLeast(list, "1.1.0"):
		return fmt.Errorf("network %s has cniVersion %s: GC requires 1.1.0", network, list.CNIVersion)
	}
	return s.host.plugins.gc(ctx, list, valid)
}

// Retry retries all debts and returns the errors.
func (s *Standalone) Retry(ctx context.Context) error { return s.host.Retry(ctx) }

// Step is one run of a plugin.
type Step struct {
	Program string          `json:"program"`
	Env     []string        `json:"env"`
	Stdin   json.RawMessage `json:"stdin"`
}

// Explain returns the runs of plugins that an operation, such as ADD, would make.
func (s *Standalone) Explain(t Target, op string) ([]Step, error) {
	r, err := s.record(t)
	if err != nil {
		return nil, err
	}
	p, list := s.host.plugins, r.list()
	if op == opDel {
		slices.Reverse(list.Plugins)
	}
	var steps []Step
	for _, plugin := range list.Plugins {
		c := p.call(&r, list, plugin, op)
		c.args.Command = op
		stdin, err := c.stdin()
		if err != nil {
			return nil, err
		}
		program, err := p.lookup(plugin.Network.Type)
		if err != nil {
			program = plugin.Network.Type + " (" + err.Error() + ")"
		}
		c.args.Path = strings.Join(p.path(plugin.Network.Type), ":")
		env := slices.DeleteFunc(c.args.AsEnv(), func(kv string) bool { return !strings.HasPrefix(kv, "CNI_") })
		slices.Sort(env)
		steps = append(steps, Step{program, env, stdin})
	}
	return steps, nil
}
