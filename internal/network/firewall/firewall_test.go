package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
	"github.com/huskd/husk/internal/pod"
)

// kernel keeps the rules in memory. Package policytable has the same tests with nftables.
type kernel struct {
	mu    sync.Mutex
	rules *ruleset.Ruleset // nil if there are none
	fails error
	loads int
	ended int
	// changes is called before each change, unless it is nil.
	changes func()
	judged  policy.Flow // EndFlows counts this connection if it isn't allowed
}

func (k *kernel) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails = err
}

func (k *kernel) changing() {
	if k.changes != nil {
		k.changes()
	}
}

func (k *kernel) Exists() (bool, error) { return k.rules != nil, nil }

func (k *kernel) Load(r *ruleset.Ruleset) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails != nil {
		return k.fails
	}
	k.changing()
	k.loads++
	k.rules = ruleset.New()
	k.rules.Apply(r.All())
	return nil
}

func (k *kernel) Apply(u *ruleset.Update) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails == nil {
		k.changing()
		k.rules.Apply(u)
	}
	return k.fails
}

func (k *kernel) Read() (*ruleset.Ruleset, error) {
	if k.rules == nil {
		return ruleset.New(), nil
	}
	return k.rules, nil
}

func (k *kernel) EndFlows() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rules == nil || k.rules.Allows(k.judged) {
		return 0, nil
	}
	k.ended++
	return 1, nil
}

func (k *kernel) Teardown() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rules = nil
	return nil
}

// source is fed by the test.
type source struct {
	update  func(policy.Changes)
	waiting func(error)
}

func (s *source) Run(ctx context.Context, update func(policy.Changes), waiting func(error)) error {
	s.update, s.waiting = update, waiting
	<-ctx.Done()
	return nil
}

var (
	webAddr, dbAddr = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	nodeAddr        = netip.MustParseAddr("192.0.2.1")
	web             = pod.Attachment{Sandbox: "1", IfName: "eth0", Pod: pod.Ref{Namespace: "shop", Name: "web"}, Labels: map[string]string{"app": "web"}}
	db              = pod.Attachment{Sandbox: "2", IfName: "eth0", Pod: pod.Ref{Namespace: "shop", Name: "db"}, Labels: map[string]string{"app": "db"}}
	query           = policy.Flow{From: webAddr, To: dbAddr, Protocol: policy.TCP, Port: 5432}
)

func prefixes(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())} }

// isolateDB lets only pods with a label reach the database.
func isolateDB(allowed string) *policy.Policy {
	return &policy.Policy{
		Name: "NetworkPolicy shop/db", Tier: policy.Namespaced,
		Subject: policy.PodSelector{Namespace: "shop", Pods: labels.SelectorFromSet(labels.Set{"app": "db"})},
		Ingress: &policy.Rules{Rules: []policy.Rule{{
			Name: "ingress rule 1", Action: policy.Accept,
			Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "shop", Pods: labels.SelectorFromSet(labels.Set{"app": allowed})}}},
		}}},
	}
}

func policies(list ...*policy.Policy) policy.Changes {
	c := policy.Changes{Policies: map[string]*policy.Policy{}, Namespaces: map[string]labels.Set{"shop": {}}}
	for _, p := range list {
		c.Policies[p.Name] = p
	}
	return c
}

// run runs a test with a Firewall in a bubble of its own.
func run(t *testing.T, required bool, test func(t *testing.T, f *Firewall, k *kernel, s *source)) {
	synctest.Test(t, func(t *testing.T) {
		runWith(t, Config{Required: required}, test)
	})
}

// runWith is run in the caller's bubble.
func runWith(t *testing.T, cfg Config, test func(t *testing.T, f *Firewall, k *kernel, s *source)) {
	k, s := &kernel{judged: query}, &source{}
	cfg.Source, cfg.Kernel, cfg.Log = s, k, slog.New(slog.DiscardHandler)
	cfg.IsNode = func(addr netip.Addr) (bool, error) { return addr == nodeAddr, nil }
	f := New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	synctest.Wait()
	test(t, f, k, s)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func (f *Firewall) admit(t *testing.T, a pod.Attachment, addr netip.Addr) {
	t.Helper()
	if err := f.Admit(t.Context(), a, prefixes(addr)); err != nil {
		t.Fatal(err)
	}
}

// settle waits until changes have reached the kernel.
func settle() {
	time.Sleep(quiet + endAfter + time.Millisecond)
	synctest.Wait()
}

// TestAdmit checks that a pod's policies are in the kernel when Admit returns, and that they follow
// the objects.
func TestAdmit(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		s.update(policies(isolateDB("web")))
		f.admit(t, web, webAddr)
		f.admit(t, db, dbAddr)
		if !k.rules.Allows(query) || k.rules.Pods[dbAddr].Ingress == "" || k.rules.Pods[webAddr].Ingress != "" {
			t.Errorf("the kernel has %+v", k.rules)
		}
		s.update(policies(isolateDB("admin")))
		settle()
		if k.rules.Allows(query) || k.ended == 0 {
			t.Errorf("the old policy is in force: %+v, flows ended %d times", k.rules, k.ended)
		}
		f.Forget(web)
		settle()
		if _, ok := k.rules.Pods[webAddr]; ok {
			t.Error("a pod that is gone is in the kernel")
		}
		s.update(policy.Changes{Policies: map[string]*policy.Policy{"NetworkPolicy shop/db": nil}})
		settle()
		if k.rules != nil {
			t.Error("without any policy there are rules")
		}
	})
}

// TestAdmitWaits checks that a pod isn't admitted before its policies are known, and that it says
// why.
func TestAdmitWaits(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		s.waiting(errors.New("the API server is away"))
		began := time.Now()
		err := f.Admit(t.Context(), db, prefixes(dbAddr))
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "the API server is away") || time.Since(began) != sourceLimit {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		go func() {
			time.Sleep(time.Second)
			s.update(policies(isolateDB("web")))
		}()
		began = time.Now()
		f.admit(t, db, dbAddr)
		if time.Since(began) != time.Second || k.rules.Allows(query) {
			t.Errorf("after %v the kernel has %+v", time.Since(began), k.rules)
		}
	})
}

// TestAdmitWithoutLabels checks that Admit waits for the object of a pod of another runtime.
func TestAdmitWithoutLabels(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		s.update(policies(isolateDB("web")))
		bare := db
		bare.Labels = nil
		if err := f.Admit(t.Context(), bare, prefixes(dbAddr)); !errdefs.IsUnavailable(err) {
			t.Errorf("a pod of which nothing is known: %v", err)
		}
		if k.rules != nil && len(k.rules.Pods) > 0 {
			t.Errorf("the kernel has %+v", k.rules.Pods)
		}
		go func() {
			time.Sleep(time.Second)
			s.update(policy.Changes{Pods: map[string]*policy.Pod{"shop/db": {Namespace: "shop", Name: "db", Labels: labels.Set{"app": "db"}}}})
		}()
		f.admit(t, bare, dbAddr)
		if k.rules.Allows(query) {
			t.Errorf("the kernel has %+v", k.rules)
		}
	})
}

// TestForbidden checks what happens if the source permits nothing.
func TestForbidden(t *testing.T) {
	for _, required := range []bool{false, true} {
		run(t, required, func(t *testing.T, f *Firewall, k *kernel, s *source) {
			s.waiting(errdefs.ErrPermissionDenied.WithMessage("bind a role"))
			err := f.Admit(t.Context(), db, prefixes(dbAddr))
			if required && (!errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "bind a role")) || !required && err != nil {
				t.Errorf("required %v: %v", required, err)
			}
			if k.rules = ruleset.New(); !required {
				if err := f.Admit(t.Context(), web, prefixes(webAddr)); !errdefs.IsUnavailable(err) {
					t.Errorf("with the rules of a former huskd: %v", err)
				}
				k.rules = nil
			}
			if note := f.Report(false).Note; !strings.Contains(note, "bind a role") {
				t.Errorf("the note is %q", note)
			}
		})
	}
}

// TestRestart checks that pods of a former huskd are in the first rules that the kernel gets.
func TestRestart(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		k.rules = ruleset.New() // of before
		k.rules.Identities[webAddr] = ruleset.FirstPod + 77
		f.Adopt(web, prefixes(webAddr))
		f.Adopt(db, prefixes(dbAddr))
		settle()
		if k.loads != 0 {
			t.Error("the kernel's rules were replaced before the policies were known")
		}
		s.update(policies(isolateDB("web")))
		settle()
		if k.loads != 1 || len(k.rules.Pods) != 2 || !k.rules.Allows(query) || k.rules.Identities[webAddr] != ruleset.FirstPod+77 {
			t.Errorf("after %d loads: %+v", k.loads, k.rules)
		}
	})
}

// TestSaved checks that a pod that starts while the source is away gets the policies that were
// known before, and that the source's answer replaces them.
func TestSaved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.json")
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{File: file}
		runWith(t, cfg, func(_ *testing.T, _ *Firewall, _ *kernel, s *source) {
			s.update(policies(isolateDB("admin")))
			settle()
		})
		runWith(t, cfg, func(t *testing.T, f *Firewall, k *kernel, s *source) {
			f.Adopt(web, prefixes(webAddr))
			settle()
			if k.loads != 0 {
				t.Error("policies of before replaced the kernel's rules, which may be newer")
			}
			began := time.Now()
			f.admit(t, db, dbAddr)
			if time.Since(began) != restoredLimit || k.rules.Allows(query) || !strings.Contains(f.Report(false).Note, "out of date") {
				t.Errorf("after %v: %q, %+v", time.Since(began), f.Report(false).Note, k.rules)
			}
			s.update(policies())
			settle()
			if k.rules != nil || len(f.World().Policies) != 0 {
				t.Errorf("a policy that is gone is in force: %+v", k.rules)
			}
		})
	})
	if err := os.WriteFile(file, []byte(`{"version":1,"policies":[{"name":"x"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := New(Config{File: file, Log: slog.New(slog.DiscardHandler)}); f.restored {
		t.Error("a damaged file was read")
	}
}

// TestSavedBeforeInForce checks that policies which the kernel has are saved. A killed huskd that
// can't reach the source must not go back to older ones.
func TestSavedBeforeInForce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.json")
	synctest.Test(t, func(t *testing.T) {
		runWith(t, Config{File: file}, func(t *testing.T, f *Firewall, k *kernel, s *source) {
			changed := 0
			k.changes = func() {
				if changed++; len(New(Config{File: file, Log: slog.New(slog.DiscardHandler)}).world.policies) != changed {
					t.Error("the kernel has policies that aren't saved")
				}
			}
			f.Adopt(db, prefixes(dbAddr))
			s.update(policies(isolateDB("web")))
			settle()
			other := isolateDB("admin")
			other.Name = "NetworkPolicy shop/other"
			s.update(policies(other))
			settle()
			if k.changes = nil; changed != 2 {
				t.Errorf("the kernel changed %d times", changed)
			}
		})
	})
}

// TestAtOnce checks that a change that comes alone doesn't wait for others.
func TestAtOnce(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		f.Adopt(db, prefixes(dbAddr))
		s.update(policies(isolateDB("web")))
		settle()
		began := time.Now()
		s.update(policies(isolateDB("admin")))
		synctest.Wait()
		if took := time.Since(began); took != 0 || k.rules.Allows(query) {
			t.Errorf("after %v the kernel has %+v", took, k.rules)
		}
	})
}

// TestSnapshot checks that a world is the same after it was saved and read.
func TestSnapshot(t *testing.T) {
	parse := func(s string) labels.Selector {
		parsed, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	p := isolateDB("web")
	p.Priority, p.Tier = -3, policy.Baseline
	p.Subject = policy.PodSelector{Namespaces: labels.Everything(), Pods: labels.Nothing()}
	p.Egress = &policy.Rules{Rules: []policy.Rule{
		{Name: "nobody", Action: policy.Deny, Peers: []policy.Peer{}, Ports: []policy.Port{}},
		{Name: "some", Action: policy.Pass, Peers: []policy.Peer{
			{Nodes: parse("a in (b,c),!d,e!=f")},
			{Networks: &policy.Networks{Prefix: netip.MustParsePrefix("fd00::/8"), Except: []netip.Prefix{netip.MustParsePrefix("fd00:1::/32")}}},
			{Pods: &policy.PodSelector{Namespaces: parse("x"), Pods: labels.Everything()}},
		}, Ports: []policy.Port{{Protocol: policy.TCP, First: 1, Last: 2}, {Name: "web"}}},
	}}
	w := newWorld()
	w.change(policy.Changes{
		Policies:   map[string]*policy.Policy{p.Name: p, "none": {Name: "none", Subject: policy.PodSelector{Namespace: "a", Pods: labels.Everything()}, Ingress: &policy.Rules{}}},
		Namespaces: map[string]labels.Set{"shop": {"a": "b"}, "empty": {}},
		Pods:       map[string]*policy.Pod{"shop/db": {Namespace: "shop", Name: "db", Labels: labels.Set{"app": "db"}, Addresses: []netip.Addr{dbAddr}, Ports: []policy.NamedPort{{Name: "sql", Protocol: policy.TCP, Port: 5432}}, Started: time.Unix(5, 0).UTC()}},
		Nodes:      map[string]*policy.Node{"n": {Name: "n", Labels: labels.Set{"x": "y"}, Addresses: []netip.Addr{webAddr}}},
	})
	text, err := w.encode()
	if err != nil {
		t.Fatal(err)
	}
	c, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	again := newWorld()
	again.change(c)
	second, err := again.encode()
	if err != nil || len(second) != len(text) {
		t.Errorf("%v: %s\nis now %s", err, text, second)
	}
	for name, p := range w.policies {
		q := again.policies[name]
		if fmt.Sprintf("%+v", saved(p)) != fmt.Sprintf("%+v", saved(q)) || (p.Ingress == nil) != (q.Ingress == nil) || p.Subject.Pods.String() != q.Subject.Pods.String() {
			t.Errorf("%s: %+v is now %+v", name, p, q)
		}
	}
	if q := again.policies[p.Name]; q.Subject.Pods.Matches(labels.Set{}) || q.Egress.Rules[0].Peers == nil || q.Egress.Rules[0].Ports == nil || q.Ingress.Rules[0].Ports != nil {
		t.Errorf("%+v", q)
	}
}

// TestDamagedSnapshot checks that no bit of a saved world can change without notice, and that a
// file of an earlier huskd, which has no checksum, is read.
func TestDamagedSnapshot(t *testing.T) {
	w := newWorld()
	w.change(policies(isolateDB("web")))
	text, err := w.encode()
	if err != nil {
		t.Fatal(err)
	}
	for at := range text {
		for bit := range 8 {
			bad := bytes.Clone(text)
			bad[at] ^= 1 << bit
			c, err := decode(bad)
			if got := newWorld(); err == nil {
				got.change(c)
				if again, err := got.encode(); err != nil || !bytes.Equal(again, text) {
					t.Fatalf("bit %d of byte %d is flipped: %s is read as %s", bit, at, bad, again)
				}
			}
		}
	}
	_, former, _ := bytes.Cut(text, []byte(","))
	if c, err := decode(append([]byte("{"), former...)); err != nil || len(c.Policies) != 1 {
		t.Errorf("a file without a checksum is read as %+v, %v", c, err)
	}
	f := filepath.Join(t.TempDir(), "policies.json")
	if err := os.WriteFile(f, text[:len(text)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := New(Config{File: f, Log: slog.New(slog.DiscardHandler)}).Known(); err == nil {
		t.Error("a cut file is what was last known")
	}
}

// saved returns a policy as text that doesn't depend on where its parts are in memory.
func saved(p *policy.Policy) string {
	w := newWorld()
	w.policies[p.Name] = p
	text, err := w.encode()
	return fmt.Sprint(string(text), err)
}

// TestKernelFails checks that a pod isn't admitted if the kernel refuses its rules, and that all
// rules are written again later.
func TestKernelFails(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		s.update(policies(isolateDB("admin")))
		f.admit(t, web, webAddr)
		k.fail(errors.New("no memory"))
		if err := f.Admit(t.Context(), db, prefixes(dbAddr)); err == nil || !strings.Contains(f.Report(false).Note, "no memory") {
			t.Errorf("%v, %q", err, f.Report(false).Note)
		}
		if _, ok := k.rules.Pods[dbAddr]; ok {
			t.Error("the kernel has the pod")
		}
		k.fail(nil)
		time.Sleep(2 * retryAfter)
		f.admit(t, db, dbAddr)
		if k.rules.Allows(query) || f.Report(false).Note != "" {
			t.Errorf("%q, %+v", f.Report(false).Note, k.rules)
		}
	})
}

// TestReport checks what people see.
func TestReport(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		s.update(policies(isolateDB("web")))
		f.admit(t, web, webAddr)
		f.admit(t, db, dbAddr)
		r := f.Report(false)
		if len(r.Pods) != 2 || r.Pods[1].Egress.Restricted || !r.Pods[0].Ingress.Restricted || len(r.Pods[0].Ingress.Allowed) != 1 {
			t.Fatalf("%+v", r)
		}
		if a := r.Pods[0].Ingress.Allowed[0]; a.Ports != "everything" || len(a.Peers) != 1 || a.Peers[0] != "shop/web" {
			t.Errorf("%+v", a)
		}
		everybody := isolateDB("web")
		everybody.Ingress.Rules[0].Peers = nil
		s.update(policies(everybody))
		settle()
		if a := f.Report(false).Pods[0].Ingress.Allowed; len(a) != 1 || a[0].Ports != "everything" || !slices.Equal(a[0].Peers, []string{"everybody"}) {
			t.Errorf("a rule for everybody: %+v", a)
		}
		s.update(policies(isolateDB("web")))
		settle()
		denied := isolateDB("web")
		denied.Name, denied.Tier = "ClusterNetworkPolicy nodes", policy.Admin
		denied.Egress = &policy.Rules{Rules: []policy.Rule{{Name: "no node", Action: policy.Deny, Peers: []policy.Peer{{Networks: &policy.Networks{Prefix: netip.PrefixFrom(nodeAddr, 32)}}}}}}
		denied.Ingress = nil
		for _, c := range []struct {
			policy *policy.Policy
			why    string
		}{{isolateDB("web"), "no policy says otherwise"}, {denied, "ClusterNetworkPolicy nodes, no node"}} {
			s.update(policies(isolateDB("web"), c.policy))
			settle()
			if hops, err := f.Explain(policy.Flow{From: dbAddr, To: nodeAddr, Protocol: policy.TCP, Port: 22}); err != nil || len(hops) != 1 || hops[0].Why != c.why || hops[0].Difference != "" {
				t.Errorf("to the node: %+v, %v", hops, err)
			}
			s.update(policy.Changes{Policies: map[string]*policy.Policy{denied.Name: nil}})
			settle()
		}
		for name, c := range map[string]struct {
			from, to string
			allowed  bool
			why      string
		}{
			"allowed":   {"10.0.0.1", "10.0.0.2", true, "NetworkPolicy shop/db, ingress rule 1"},
			"denied":    {"192.0.2.2", "10.0.0.2", false, "isolated by NetworkPolicy shop/db, of which no rule allows it"},
			"no policy": {"10.0.0.2", "10.0.0.1", true, "no policy says otherwise"},
		} {
			hops, err := f.Explain(policy.Flow{From: netip.MustParseAddr(c.from), To: netip.MustParseAddr(c.to), Protocol: policy.TCP, Port: 5432})
			if err != nil {
				t.Fatal(err)
			}
			if last := hops[len(hops)-1]; last.Allowed != c.allowed || last.Why != c.why || last.Difference != "" {
				t.Errorf("%s: %+v", name, hops)
			}
		}
		delete(k.rules.Pods, dbAddr)
		if hops, err := f.Explain(policy.Flow{From: webAddr, To: dbAddr, Protocol: policy.TCP, Port: 5432}); err != nil || hops[1].Difference == "" {
			t.Errorf("the kernel lacks the pod: %+v, %v", hops, err)
		}
	})
}

// TestFirstPolicy checks that a pod waits while the source reads what the first policy selects.
func TestFirstPolicy(t *testing.T) {
	run(t, false, func(t *testing.T, f *Firewall, k *kernel, s *source) {
		s.update(policies())
		s.update(policy.Changes{Incomplete: true})
		s.waiting(errors.New("the pods are being read"))
		if note := f.Note(); !strings.Contains(note, "pods wait for it: the pods are being read") {
			t.Errorf("the note is %q", note)
		}
		err := f.Admit(t.Context(), db, prefixes(dbAddr))
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "the pods are being read") {
			t.Errorf("Admit: %v", err)
		}
		admitted := make(chan error)
		go func() { admitted <- f.Admit(t.Context(), db, prefixes(dbAddr)) }()
		synctest.Wait()
		s.update(policies(isolateDB("nobody")))
		if err := <-admitted; err != nil {
			t.Fatal(err)
		}
		if k.rules == nil || k.rules.Allows(query) {
			t.Error("the policy isn't in force")
		}
	})
}
