// Package enforcement runs network policy as the configuration says: it connects the owner, package
// firewall, with where policies come from and the kernel, keeps the rules in the kernel as they are
// meant to be, and reports denied connections.
package enforcement

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/accept"
	"github.com/huskd/husk/internal/network/policy/apisource"
	"github.com/huskd/husk/internal/network/policy/declared"
	"github.com/huskd/husk/internal/network/policy/exchange"
	"github.com/huskd/husk/internal/network/policy/ruleset"
	"github.com/huskd/husk/internal/network/policytable"
	"github.com/huskd/husk/internal/pod"
)

// Config configures an Enforcement.
type Config struct {
	config.PodNetwork
	Instance pod.Instance
	// Connect returns a client of the API server, see apisource. It is nil without one.
	Connect func(context.Context) (*cluster.Client, error)
	// Without an API server, Origins are where manifests with policies come from, and Pods returns
	// the pods of manifests, see package declared. Without Origins there is no policy.
	Origins []string
	Pods    func() []*policy.Pod
	// Workloads, without an API server, is where the nodes tell each other of their pods. Node is
	// the name of this one, and Subnets are those of all pods.
	Workloads exchange.Store
	Node      string
	Subnets   []netip.Prefix
	File      string // where the last known policies are saved
	// Denied is called for denied connections, with the pod that denied it as namespace/name.
	Denied func(pod, message string)
	Log    *slog.Logger
}

// Enforcement is network policy in force. It is nil, and its methods do nothing, if pods run
// without.
type Enforcement struct {
	*firewall.Firewall
	cfg      Config
	table    *policytable.Table
	declared *declared.Source   // nil with an API server
	exchange *exchange.Exchange // nil if other nodes don't tell of their pods
	// reported are denied connections, and when. Only the listener uses it.
	reported map[policy.Flow]time.Time
	limit    *rate.Limiter
	// logged limits the log of denied connections, and unlogged counts those that it left out.
	logged   *rate.Limiter
	unlogged int

	mu       sync.Mutex
	mistakes map[string][]accept.Problem // of policies on the API server. Invariant: guarded by mu.
}

// Open opens what enforces policies. If pods run without, it removes the rules that a former huskd
// has left.
func Open(cfg Config) (*Enforcement, error) {
	table, err := policytable.Open("", cfg.Instance)
	if err != nil {
		return nil, err
	}
	if cfg.Policy == config.PolicyOff || cfg.Network == "bridge" || cfg.Connect == nil && len(cfg.Origins) == 0 && cfg.Workloads == nil {
		return nil, errors.Join(table.Teardown(), table.Close())
	}
	e := &Enforcement{cfg: cfg, table: table, reported: map[policy.Flow]time.Time{}, limit: rate.NewLimiter(rate.Every(denialPace), denialBurst), logged: rate.NewLimiter(logPace, logPace), mistakes: map[string][]accept.Problem{}}
	c := firewall.Config{Source: e.source(), Kernel: table, IsNode: policytable.IsOwn, Denied: denied(table), Allowed: table.Allowed, Required: cfg.Policy == config.PolicyOn, File: cfg.File, Log: cfg.Log}
	if e.declared != nil && cfg.Workloads != nil {
		e.declared.AwaitOthers()
		e.exchange = exchange.New(exchange.Config{
			Store: cfg.Workloads, Node: cfg.Node, Subnets: cfg.Subnets, Own: func() []*policy.Pod { return e.Local() }, Others: e.declared.Others, Log: cfg.Log,
		})
		c.LocalChanged = e.exchange.Changed
	}
	e.Firewall = firewall.New(c)
	if e.declared != nil {
		e.declared.Remember(func() declared.Known {
			policies, namespaces, err := e.Known()
			return declared.Known{Policies: policies, Namespaces: namespaces, Same: firewall.Same, Err: err}
		})
	}
	return e, nil
}

// source makes the source of policies.
func (e *Enforcement) source() policy.Source {
	if e.cfg.Connect == nil {
		e.declared = declared.New(e.cfg.Pods, e.cfg.Origins...)
		return e.declared
	}
	return &apisource.Source{Connect: e.cfg.Connect, Mistaken: e.mistaken}
}

// mistaken notes the mistakes of a policy, or that it has none any more.
func (e *Enforcement) mistaken(name string, problems []accept.Problem) {
	for _, p := range problems {
		e.cfg.Log.Warn("network policy: " + p.String())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.mistakes, name)
	if len(problems) > 0 {
		e.mistakes[name] = problems
	}
}

// Problems says why policies are not in force, or not as they were written.
func (e *Enforcement) Problems() (out []string) {
	if e == nil {
		return nil
	}
	if note := e.Note(); note != "" {
		out = append(out, note)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(e.mistakes)) {
		for _, p := range e.mistakes[name] {
			out = append(out, p.String())
		}
	}
	return out
}

// Declares reports whether the policies of manifests are enforced.
func (e *Enforcement) Declares() bool { return e != nil && e.declared != nil }

// settleTime is how long Declare waits for policies to be in force.
const settleTime = 5 * time.Second

// Declare says which policies and namespaces the manifests of an origin have, see package declared.
// It returns once they are in force for pods that are admitted later.
func (e *Enforcement) Declare(origin string, objects declared.Objects) {
	if !e.Declares() {
		return
	}
	e.declared.Declare(origin, objects)
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	e.declared.Settle(ctx)
}

// PodChanged says that the pods of manifests may have changed. It doesn't block.
func (e *Enforcement) PodChanged() {
	if e.Declares() {
		e.declared.Changed()
	}
}

// Owner returns the owner of network policy, or nil.
func (e *Enforcement) Owner() *firewall.Firewall {
	if e == nil {
		return nil
	}
	return e.Firewall
}

// Run enforces policies until ctx ends.
func (e *Enforcement) Run(ctx context.Context, running *errgroup.Group) {
	if e == nil {
		return
	}
	running.Go(func() error { return e.Firewall.Run(ctx) })
	if e.exchange != nil {
		running.Go(func() error { return e.exchange.Run(ctx) })
	}
	running.Go(func() error {
		e.table.Maintain(ctx, e.cfg.Log)
		return nil
	})
	running.Go(func() error {
		if err := e.table.Denials(ctx, e.denied); err != nil {
			e.cfg.Log.Warn("network policy: denied connections are not reported", "error", err)
		}
		return nil
	})
}

// The events of denied connections: at most one each denialPace after the first denialBurst, and
// for the same connection one each denialAge.
const (
	denialPace  = time.Second
	denialBurst = 20
	denialAge   = 5 * time.Minute
	maxDenials  = 1000
)

// logPace is how many denied connections are logged in a second.
const logPace = 10

// denied reports a denied connection as an event of its pod and, if configured, in the log.
func (e *Enforcement) denied(denial policytable.Denial) {
	now := time.Now()
	maps.DeleteFunc(e.reported, func(_ policy.Flow, at time.Time) bool { return now.Sub(at) >= denialAge })
	_, known := e.reported[denial.Flow]
	event := !known && len(e.reported) < maxDenials && e.limit.Allow()
	logged := e.cfg.PolicyLog && e.logged.AllowN(now, 1)
	if e.cfg.PolicyLog && !logged {
		e.unlogged++
	}
	if !event && !logged {
		return
	}
	pod, message := e.Denial(denial.Direction, denial.Flow)
	if pod == "" {
		return
	}
	if event {
		e.reported[denial.Flow] = now
		e.cfg.Denied(pod, message)
	}
	if logged {
		f := denial.Flow
		e.cfg.Log.Info("network policy: "+message, "pod", pod, "direction", denial.Direction, "from", f.From, "to", f.To, "protocol", firewall.ProtocolName(f.Protocol), "port", f.Port, "unlogged", e.unlogged)
		e.unlogged = 0
	}
}

// denied returns what reads the counters of the kernel.
func denied(t *policytable.Table) func() (map[ruleset.ProfileID]uint64, error) {
	return func() (map[ruleset.ProfileID]uint64, error) {
		d, err := t.Denied()
		return d.Profiles, err
	}
}

// Teardown removes the rules. The node has no pods any more.
func (e *Enforcement) Teardown() error {
	if e == nil {
		return nil
	}
	return e.table.Teardown()
}

// Close closes the sockets. The rules stay.
func (e *Enforcement) Close() error {
	if e == nil {
		return nil
	}
	return e.table.Close()
}
