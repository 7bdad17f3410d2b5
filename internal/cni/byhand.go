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

// ByHand does single operations for a person, on any namespace, without huskd.
// What it has attached is in a journal of its own.
type ByHand struct {
	host    *Host
	journal *journal.Journal
}

// OpenByHand opens the journal in dir, for which it waits until ctx ends if
// another has it open.
func OpenByHand(ctx context.Context, dir string, cfg Config) (*ByHand, error) {
	for {
		j, _, err := journal.Open(dir)
		if err == nil {
			cfg.Journal = j
			h, bad := New(cfg)
			for _, err := range bad {
				h.cfg.Log.Warn("cni: a record was set aside", "error", err)
			}
			return &ByHand{h, j}, nil
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
func (b *ByHand) Close() error {
	b.host.Close()
	return b.journal.Close()
}

// Order is what an operation is about.
type Order struct {
	Network string
	Netns   string // path; may be gone for Del
	IfName  string
	Args    [][2]string
	Caps    map[string]json.RawMessage // by capability
}

// ContainerID is what plugins know the namespace by.
func (o Order) ContainerID() string {
	sum := sha256.Sum256([]byte(o.Netns))
	return "husk-net-" + hex.EncodeToString(sum[:10])
}

// Networks tells what is configured.
func (b *ByHand) Networks() conf.State { return b.host.Networks() }

// Attachments returns what was attached by hand, and what of it is owed.
func (b *ByHand) Attachments() []Attachment { return b.host.Attachments() }

// Validate says what is wrong with a file, or with the plugins that it names.
func (b *ByHand) Validate(file string) (*libcni.NetworkConfigList, error) {
	list, err := conf.Read(file)
	if err == nil {
		err = b.host.plugins.usable(list)
	}
	return list, err
}

func (b *ByHand) network(name string) (*libcni.NetworkConfigList, error) {
	now := b.Networks()
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
	return nil, fmt.Errorf("no network %s is configured in %s, only: %s", name, b.host.cfg.ConfDir, strings.Join(names, ", "))
}

// record returns the attachment that an order is about, made or to be made.
func (b *ByHand) record(o Order) (record, error) {
	id := o.ContainerID()
	if r := b.host.find(key(id, o.IfName)); r != nil {
		if r.Network != o.Network {
			return *r, fmt.Errorf("%s of %s is attached to network %s: detach it first", o.IfName, o.Netns, r.Network)
		}
		return *r, nil
	}
	list, err := b.network(o.Network)
	if err != nil {
		return record{}, err
	}
	data, err := conf.Marshal(list)
	a := pod.Attachment{Sandbox: id, Netns: o.Netns, IfName: o.IfName, Pod: pod.Ref{Namespace: "by-hand", Name: o.Netns}}
	return record{Attachment: a, Network: o.Network, Conf: data, Args: o.Args, Caps: o.Caps}, err
}

// Add attaches and returns the result, again if it is attached already. If it
// fails, it is undone or owed.
func (b *ByHand) Add(ctx context.Context, o Order) (json.RawMessage, error) {
	r, err := b.record(o)
	if err != nil {
		return nil, err
	}
	leave, err := b.host.enter(ctx, o.ContainerID())
	if err != nil {
		return nil, err
	}
	defer leave()
	if r.State == attached {
		return r.Result, nil
	}
	if r.State != "" {
		if err := b.host.pay(ctx, &r, b.host.cfg.Timeout); err != nil {
			return nil, fmt.Errorf("its former attachment is still there: %w", err)
		}
		if r, err = b.record(o); err != nil {
			return nil, err
		}
	}
	r.State = adding
	if err := b.host.make(ctx, &r); err != nil {
		if owed := b.host.pay(ctx, &r, b.host.cfg.Timeout); owed != nil {
			err = fmt.Errorf("%w; undoing it is owed: %w", err, owed)
		}
		return nil, err
	}
	return r.Result, nil
}

// Del detaches, also what it knows nothing of. What fails is owed.
func (b *ByHand) Del(ctx context.Context, o Order) error {
	r, err := b.record(o)
	if err != nil {
		return err
	}
	leave, err := b.host.enter(ctx, o.ContainerID())
	if err != nil {
		return err
	}
	defer leave()
	if r.State != "" {
		return b.host.pay(ctx, &r, b.host.cfg.Timeout)
	}
	r.Attachment.Netns = b.host.spare.find(r.Attachment)
	return b.host.plugins.del(ctx, &r)
}

// Check says what of an attachment isn't as it was made.
func (b *ByHand) Check(ctx context.Context, o Order) error {
	r, err := b.record(o)
	if err == nil && r.State != attached {
		err = fmt.Errorf("%s of %s was not attached to network %s by hand", o.IfName, o.Netns, o.Network)
	}
	if err != nil {
		return err
	}
	return b.host.plugins.check(ctx, &r)
}

// Status says why nothing can be attached to a network.
func (b *ByHand) Status(ctx context.Context, network string) error {
	list, err := b.network(network)
	if err != nil {
		return err
	}
	return b.host.plugins.status(ctx, list)
}

// Speaks tells which versions of CNI a plugin speaks.
type Speaks struct {
	Plugin   string   `json:"plugin"`
	Versions []string `json:"versions"`
}

// Versions asks the plugins of a network which versions they speak.
func (b *ByHand) Versions(network string) ([]Speaks, error) {
	list, err := b.network(network)
	if err != nil {
		return nil, err
	}
	var out []Speaks
	for _, plugin := range list.Plugins {
		s := b.host.plugins.supports(list, plugin)
		if s.err != nil {
			return nil, s.err
		}
		out = append(out, Speaks{plugin.Network.Type, s.versions})
	}
	return out, nil
}

// GC has the plugins of a network remove all that isn't of a valid attachment.
func (b *ByHand) GC(ctx context.Context, network string, valid []types.GCAttachment) error {
	list, err := b.network(network)
	switch {
	case err != nil:
		return err
	case list.DisableGC:
		return fmt.Errorf("network %s has disableGC", network)
	case !speaks(list, "1.1.0"):
		return fmt.Errorf("network %s has cniVersion %s: GC came with 1.1.0", network, list.CNIVersion)
	}
	return b.host.plugins.gc(ctx, list, valid)
}

// Retry tries to pay what is owed and returns what is in the way.
func (b *ByHand) Retry(ctx context.Context) error { return b.host.Retry(ctx) }

// Step is one run of one plugin.
type Step struct {
	Program string          `json:"program"`
	Env     []string        `json:"env"`
	Stdin   json.RawMessage `json:"stdin"`
}

// Explain tells what an operation, "ADD" or another, would run.
func (b *ByHand) Explain(o Order, op string) ([]Step, error) {
	r, err := b.record(o)
	if err != nil {
		return nil, err
	}
	p, list := b.host.plugins, r.list()
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
