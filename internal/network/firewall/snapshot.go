package firewall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/policy"
)

// saveOthers is how often pods and nodes are saved. A large cluster changes all the time.
const saveOthers = time.Minute

// unsaved is what has changed since it was saved.
type unsaved struct{ policies, others bool }

func (u *unsaved) add(c policy.Changes) {
	u.policies = u.policies || len(c.Policies)+len(c.Namespaces) > 0
	u.others = u.others || len(c.Pods)+len(c.Nodes) > 0
}

// othersFile is where pods and nodes are saved.
func othersFile(cfg *Config) string { return strings.TrimSuffix(cfg.File, ".json") + "-pods.json" }

// restore reads the saved world.
func (f *Firewall) restore() {
	if f.cfg.File == "" {
		return
	}
	var known []policy.Changes
	for _, file := range []string{f.cfg.File, othersFile(&f.cfg)} {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var c policy.Changes
		if err == nil {
			c, err = decode(text)
		}
		if err != nil {
			f.cfg.Log.Warn("network policy: the last known policies can't be read; pods wait for the source", "file", file, "error", err)
			f.unread = fmt.Errorf("%s: %w", file, err)
			return
		}
		known = append(known, c)
	}
	for _, c := range known {
		f.world.change(c)
		f.compiler.Change(c)
	}
	f.restored = len(known) > 0
}

// Known returns the policies and namespaces that are in force as far as is known, and why those of
// a former huskd aren't.
func (f *Firewall) Known() (map[string]*policy.Policy, map[string]labels.Set, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.world.policies), maps.Clone(f.world.namespaces), f.unread
}

// keepSaved saves pods and nodes from time to time, and when ctx ends.
func (f *Firewall) keepSaved(ctx context.Context) {
	tick := time.NewTicker(saveOthers)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		f.mu.Lock()
		f.savePolicies()
		due := f.unsaved.others
		f.unsaved.others = false
		w := world{pods: maps.Clone(f.world.pods), nodes: maps.Clone(f.world.nodes)}
		f.mu.Unlock()
		if due {
			w.save(&f.cfg, othersFile(&f.cfg))
		}
	}
}

// savePolicies saves policies and namespaces, unless they are saved already. The kernel gets them
// afterwards: otherwise a huskd that was killed in between, and can't reach the source, would go
// back to older policies. The caller holds mu.
func (f *Firewall) savePolicies() {
	if f.unsaved.policies {
		f.unsaved.policies = false
		w := world{policies: f.world.policies, namespaces: f.world.namespaces}
		w.save(&f.cfg, f.cfg.File)
		f.written = true
	}
}

// syncPolicies makes the saved policies survive a power failure. Nothing waits for that: the rules
// in the kernel don't survive it either.
func syncPolicies(f *Firewall) {
	f.mu.Lock()
	due := f.written && f.cfg.File != ""
	f.written = false
	f.mu.Unlock()
	if !due {
		return
	}
	for _, path := range []string{f.cfg.File, filepath.Dir(f.cfg.File)} {
		file, err := os.Open(path)
		if err == nil {
			err = errors.Join(file.Sync(), file.Close())
		}
		if err != nil {
			f.cfg.Log.Warn("network policy: a power failure would lose what is known", "file", path, "error", err)
		}
	}
}

// save writes a world to a file.
func (w *world) save(cfg *Config, file string) {
	if cfg.File == "" {
		return
	}
	text, err := w.encode()
	if err == nil {
		err = replace(file, text)
	}
	if err != nil {
		cfg.Log.Warn("network policy: what is known can't be saved for the next start", "file", file, "error", err)
	}
}

// replace writes a file so that a crash leaves the old or the new one.
func replace(file string, content []byte) error {
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	crashpoint.Hit("policy.saving")
	return os.Rename(tmp, file)
}

// snapshot is the form in which the last known world is saved. Pods that start while the source
// can't be reached get its policies.
type snapshot struct {
	Version    int                   `json:"version"`
	Policies   []savedPolicy         `json:"policies,omitempty"`
	Namespaces map[string]labels.Set `json:"namespaces,omitempty"`
	Pods       []*policy.Pod         `json:"pods,omitempty"`
	Nodes      []*policy.Node        `json:"nodes,omitempty"`
}

// snapshotVersion is that of the form. Another version is not read.
const snapshotVersion = 1

// savedPolicy is a policy.Policy whose selectors are text.
type savedPolicy struct {
	Name            string        `json:"name"`
	Tier            policy.Tier   `json:"tier"`
	Priority        int32         `json:"priority,omitempty"`
	Subject         savedSelector `json:"subject"`
	Ingress, Egress *[]savedRule  `json:",omitempty"`
}

type savedRule struct {
	Name   string         `json:"name"`
	Action policy.Action  `json:"action"`
	Peers  *[]savedPeer   `json:"peers,omitempty"` // absent is everybody
	Ports  *[]policy.Port `json:"ports,omitempty"` // absent is every port
}

type savedPeer struct {
	Pods     *savedSelector   `json:"pods,omitempty"`
	Nodes    *string          `json:"nodes,omitempty"`
	Networks *policy.Networks `json:"networks,omitempty"`
}

type savedSelector struct {
	Namespace  string  `json:"namespace,omitempty"`
	Namespaces *string `json:"namespaces,omitempty"`
	Pods       string  `json:"pods"`
}

// nothing is the text of a selector that selects nothing, which has none of its own.
const nothing = "!"

func saveLabels(s labels.Selector) string {
	if s == nil || s.String() == "" && !s.Empty() {
		return nothing
	}
	return s.String()
}

func restoreLabels(text string) (labels.Selector, error) {
	if text == nothing {
		return labels.Nothing(), nil
	}
	return labels.Parse(text)
}

func saveSelector(s *policy.PodSelector) savedSelector {
	out := savedSelector{Namespace: s.Namespace, Pods: saveLabels(s.Pods)}
	if s.Namespace == "" {
		text := saveLabels(s.Namespaces)
		out.Namespaces = &text
	}
	return out
}

func (s *savedSelector) restore() (out policy.PodSelector, err error) {
	out.Namespace = s.Namespace
	if out.Pods, err = restoreLabels(s.Pods); err == nil && s.Namespaces != nil {
		out.Namespaces, err = restoreLabels(*s.Namespaces)
	}
	if err == nil && out.Namespace == "" && out.Namespaces == nil {
		err = fmt.Errorf("a selector without a namespace")
	}
	return out, err
}

func saveRules(r *policy.Rules) *[]savedRule {
	if r == nil {
		return nil
	}
	out := []savedRule{}
	for _, rule := range r.Rules {
		saved := savedRule{Name: rule.Name, Action: rule.Action}
		if rule.Ports != nil {
			saved.Ports = &rule.Ports
		}
		if rule.Peers != nil {
			peers := []savedPeer{}
			for _, p := range rule.Peers {
				peer := savedPeer{Networks: p.Networks}
				if p.Pods != nil {
					s := saveSelector(p.Pods)
					peer.Pods = &s
				}
				if p.Nodes != nil {
					s := saveLabels(p.Nodes)
					peer.Nodes = &s
				}
				peers = append(peers, peer)
			}
			saved.Peers = &peers
		}
		out = append(out, saved)
	}
	return &out
}

func restoreRules(saved *[]savedRule) (*policy.Rules, error) {
	if saved == nil {
		return nil, nil
	}
	out := &policy.Rules{}
	for _, r := range *saved {
		rule := policy.Rule{Name: r.Name, Action: r.Action}
		if r.Ports != nil {
			rule.Ports = append([]policy.Port{}, *r.Ports...)
		}
		if r.Peers != nil {
			rule.Peers = []policy.Peer{}
			for _, p := range *r.Peers {
				peer, err := p.restore()
				if err != nil {
					return nil, err
				}
				rule.Peers = append(rule.Peers, peer)
			}
		}
		out.Rules = append(out.Rules, rule)
	}
	return out, nil
}

func (p *savedPeer) restore() (out policy.Peer, err error) {
	out.Networks = p.Networks
	if p.Nodes != nil {
		out.Nodes, err = restoreLabels(*p.Nodes)
	}
	if p.Pods != nil && err == nil {
		var s policy.PodSelector
		s, err = p.Pods.restore()
		out.Pods = &s
	}
	if err == nil && out.Networks == nil && out.Nodes == nil && out.Pods == nil {
		err = fmt.Errorf("a peer of no kind")
	}
	return out, err
}

// encode returns a world as text.
func (w *world) encode() ([]byte, error) {
	s := snapshot{Version: snapshotVersion, Namespaces: w.namespaces}
	for _, p := range w.policies {
		s.Policies = append(s.Policies, savedForm(p))
	}
	for _, p := range w.pods {
		s.Pods = append(s.Pods, p)
	}
	for _, n := range w.nodes {
		s.Nodes = append(s.Nodes, n)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return append(sumOf(text), text[1:]...), nil
}

// sumStart begins a saved world, before the checksum of what follows its comma. A file without one
// is of an earlier huskd, which also reads files with one.
const sumStart = `{"sum":"`

// sumOf returns the beginning of the file that is text, up to the comma.
func sumOf(text []byte) []byte {
	return fmt.Appendf(nil, `%s%08x",`, sumStart, crc32.Checksum(text[1:], crc32.MakeTable(crc32.Castagnoli)))
}

// verify reports whether a saved world is as it was written.
func verify(text []byte) error {
	rest, ok := bytes.CutPrefix(text, []byte(sumStart))
	if !ok {
		return nil
	}
	_, content, _ := bytes.Cut(rest, []byte(","))
	if want := sumOf(append([]byte("{"), content...)); !bytes.HasPrefix(text, want) {
		return errors.New("its checksum is wrong")
	}
	return nil
}

// Same reports whether two policies say the same.
func Same(a, b *policy.Policy) bool {
	one, err := json.Marshal(savedForm(a))
	other, otherErr := json.Marshal(savedForm(b))
	return err == nil && otherErr == nil && bytes.Equal(one, other)
}

// savedForm returns a policy in the form in which it is saved.
func savedForm(p *policy.Policy) savedPolicy {
	return savedPolicy{p.Name, p.Tier, p.Priority, saveSelector(&p.Subject), saveRules(p.Ingress), saveRules(p.Egress)}
}

// decode returns the world of a text as changes to an empty one.
func decode(text []byte) (policy.Changes, error) {
	if err := verify(text); err != nil {
		return policy.Changes{}, err
	}
	var s snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return policy.Changes{}, err
	}
	if s.Version != snapshotVersion {
		return policy.Changes{}, fmt.Errorf("version %d: this huskd reads version %d", s.Version, snapshotVersion)
	}
	c := policy.Changes{Policies: map[string]*policy.Policy{}, Namespaces: s.Namespaces, Pods: map[string]*policy.Pod{}, Nodes: map[string]*policy.Node{}}
	for _, p := range s.Policies {
		out := &policy.Policy{Name: p.Name, Tier: p.Tier, Priority: p.Priority}
		var err error
		if out.Subject, err = p.Subject.restore(); err == nil {
			if out.Ingress, err = restoreRules(p.Ingress); err == nil {
				out.Egress, err = restoreRules(p.Egress)
			}
		}
		if err != nil {
			return policy.Changes{}, fmt.Errorf("%s: %w", p.Name, err)
		}
		c.Policies[p.Name] = out
	}
	for _, p := range s.Pods {
		if p != nil {
			c.Pods[p.Key()] = p
		}
	}
	for _, n := range s.Nodes {
		if n != nil {
			c.Nodes[n.Name] = n
		}
	}
	return c, nil
}
