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

// Standalone does single operations for a person, on any namespace, without huskd.
// What it has attached is in a journal of its own.
type Standalone struct {
	host    *Host
	journal *journal.Journal
}

// OpenStandalone opens the journal in dir, for which it waits until ctx ends if
// another has it open.
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

// Close ends it. What is attached stays so.
func (s *Standalone) Close() error {
	s.host.Close()
	return s.journal.Close()
}

// Target is what an operation is about.
type Target struct {
	Network string
	Netns   string // path; may be gone for Del
	IfName  string
	Args    [][2]string
	Caps    map[string]json.RawMessage // by capability
}

// ContainerID is what plugins know the namespace by.
func (t Target) ContainerID() string {
	sum := sha256.Sum256([]byte(t.Netns))
	return "husk-net-" + hex.EncodeToString(sum[:10])
}

// Networks tells what is configured.
func (s *Standalone) Networks() conf.State { return s.host.Networks() }

// Attachments returns what was attached by hand, and what of it is owed.
func (s *Standalone) Attachments() []Attachment { return s.host.Attachments() }

// Validate says what is wrong with a file, or with the plugins that it names.
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

// record returns the attachment that an order is about, made or to be made.
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
	a := pod.Attachment{Sandbox: id, Netns: t.Netns, IfName: t.IfName, Pod: pod.Ref{Namespace: "by-hand", Name: t.Netns}}
	return record{Attachment: a, Network: t.Network, Conf: data, Args: t.Args, Caps: t.Caps}, err
}

// Add attaches and returns the result, again if it is attached already. If it
// fails, it is undone or owed.
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
		if err := s.host.pay(ctx, &r, s.host.cfg.Timeout); err != nil {
			return nil, fmt.Errorf("its former attachment is still there: %w", err)
		}
		if r, err = s.record(t); err != nil {
			return nil, err
		}
	}
	r.State = adding
	if err := s.host.make(ctx, &r); err != nil {
		if owed := s.host.pay(ctx, &r, s.host.cfg.Timeout); owed != nil {
			err = fmt.Errorf("%w; undoing it is owed: %w", err, owed)
		}
		return nil, err
	}
	return r.Result, nil
}

// Del detaches, also what it knows nothing of. What fails is owed.
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
		return s.host.pay(ctx, &r, s.host.cfg.Timeout)
	}
	r.Attachment.Netns = s.host.retained.find(r.Attachment)
	return s.host.plugins.del(ctx, &r)
}

// Check says what of an attachment isn't as it was made.
func (s *Standalone) Check(ctx context.Context, t Target) error {
	r, err := s.record(t)
	if err == nil && r.State != attached {
		err = fmt.Errorf("%s of %s was not attached to network %s by hand", t.IfName, t.Netns, t.Network)
	}
	if err != nil {
		return err
	}
	return s.host.plugins.check(ctx, &r)
}

// Status says why nothing can be attached to a network.
func (s *Standalone) Status(ctx context.Context, network string) error {
	list, err := s.network(network)
	if err != nil {
		return err
	}
	return s.host.plugins.status(ctx, list)
}

// PluginVersions tells which versions of CNI a plugin speaks.
type PluginVersions struct {
	Plugin   string   `json:"plugin"`
	Versions []string `json:"versions"`
}

// Versions asks the plugins of a network which versions they speak.
func (s *Standalone) Versions(network string) ([]PluginVersions, error) {
	list, err := s.network(network)
	if err != nil {
		return nil, err
	}
	var out []PluginVersions
	for _, plugin := range list.Plugins {
		s := s.host.plugins.supports(list, plugin)
		if s.err != nil {
			return nil, s.err
		}
		out = append(out, PluginVersions{plugin.Network.Type, s.versions})
	}
	return out, nil
}

// GC has the plugins of a network remove all that isn't of a valid attachment.
func (s *Standalone) GC(ctx context.Context, network string, valid []types.GCAttachment) error {
	list, err := s.network(network)
	switch {
	case err != nil:
		return err
	case list.DisableGC:
		return fmt.Errorf("network %s has disableGC", network)
	case !speaks(list, "1.1.0"):
		return fmt.Errorf("network %s has cniVersion %s: GC came with 1.1.0", network, list.CNIVersion)
	}
	return s.host.plugins.gc(ctx, list, valid)
}

// Retry tries to pay what is owed and returns what is in the way.
func (s *Standalone) Retry(ctx context.Context) error { return s.host.Retry(ctx) }

// Step is one run of one plugin.
type Step struct {
	Program string          `json:"program"`
	Env     []string        `json:"env"`
	Stdin   json.RawMessage `json:"stdin"`
}

// Explain tells what an operation, "ADD" or another, would run.
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
