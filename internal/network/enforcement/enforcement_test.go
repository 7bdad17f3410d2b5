package enforcement

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/accept"
	"github.com/huskd/husk/internal/network/policy/ruleset"
	"github.com/huskd/husk/internal/network/policytable"
)

// TestProblems checks that the mistakes of policies are shown until they are corrected, beside the
// reason why policies aren't known.
func TestProblems(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	e := &Enforcement{cfg: Config{Log: log}, Firewall: firewall.New(firewall.Config{Log: log}), mistakes: map[string][]accept.Problem{}}
	wants := func(want ...string) {
		t.Helper()
		if got := e.Problems()[1:]; !slices.Equal(got, want) {
			t.Errorf("the problems are %q, want %q", got, want)
		}
	}
	if got := e.Problems(); len(got) != 1 {
		t.Fatalf("the problems are %q, want that the source has not answered", got)
	}
	e.mistaken("b", []accept.Problem{{Object: "b", Field: "spec", Text: "x"}})
	e.mistaken("a", []accept.Problem{{Object: "a", Field: "spec", Text: "y"}, {Object: "a", Field: "kind", Text: "z"}})
	wants("a: spec: y", "a: kind: z", "b: spec: x")
	e.mistaken("a", nil)
	wants("b: spec: x")
	if none := (*Enforcement)(nil).Problems(); none != nil {
		t.Errorf("without policy: %q", none)
	}
}

// TestDeniedLog checks that denied connections are logged if that is configured, at a limited rate,
// and that each is an event of its pod once.
func TestDeniedLog(t *testing.T) {
	for _, on := range []bool{false, true} {
		var out bytes.Buffer
		events := 0
		log := slog.New(slog.NewTextHandler(&out, nil))
		e := &Enforcement{
			cfg:      Config{PodNetwork: config.PodNetwork{PolicyLog: on}, Log: log, Denied: func(string, string) { events++ }},
			Firewall: firewall.New(firewall.Config{Source: isolated{}, Kernel: noKernel{}, Log: log}),
			reported: map[policy.Flow]time.Time{}, limit: rate.NewLimiter(rate.Every(time.Hour), denialBurst), logged: rate.NewLimiter(rate.Every(time.Hour), logPace),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Firewall.Run(ctx) }()
		for len(e.World().Policies) == 0 {
			time.Sleep(time.Millisecond)
		}
		for range 2 * logPace {
			e.denied(policytable.Denial{Direction: policy.Ingress, Flow: policy.Flow{From: netip.MustParseAddr("192.0.2.1"), To: podAddr, Protocol: policy.TCP, Port: 80}})
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := 0
		if on {
			want = logPace
		}
		if got := strings.Count(out.String(), "pod=shop/db direction=ingress from=192.0.2.1 to=10.0.0.2 protocol=tcp port=80"); got != want || events != 1 {
			t.Errorf("log %v: %d lines and %d events, want %d and 1:\n%s", on, got, events, want, out.String())
		}
	}
}

var podAddr = netip.MustParseAddr("10.0.0.2")

// isolated is a source with one pod, to which nothing is allowed.
type isolated struct{}

func (isolated) Run(ctx context.Context, changed func(policy.Changes), _ func(error)) error {
	changed(policy.Changes{
		Policies: map[string]*policy.Policy{"p": {Name: "p", Tier: policy.Namespaced, Subject: policy.PodSelector{Namespace: "shop", Pods: labels.Everything()}, Ingress: &policy.Rules{}}},
		Pods:     map[string]*policy.Pod{"shop/db": {Namespace: "shop", Name: "db", Addresses: []netip.Addr{podAddr}}},
	})
	<-ctx.Done()
	return nil
}

// noKernel accepts all rules.
type noKernel struct{ firewall.Kernel }

func (noKernel) Exists() (bool, error)           { return false, nil }
func (noKernel) Load(*ruleset.Ruleset) error     { return nil }
func (noKernel) Apply(*ruleset.Update) error     { return nil }
func (noKernel) Read() (*ruleset.Ruleset, error) { return nil, nil }
func (noKernel) EndFlows() (int, error)          { return 0, nil }
func (noKernel) Teardown() error                 { return nil }
