package policytable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// between returns the update that makes one ruleset of another.
func between(old, now *ruleset.Ruleset) *ruleset.Update {
	u := &ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{}, Allow: map[ruleset.ProfileID][]ruleset.Match{}, Disallow: map[ruleset.ProfileID][]ruleset.Match{}}
	missing := func(from, in map[ruleset.Match]struct{}) (out []ruleset.Match) {
		for m := range from {
			if _, ok := in[m]; !ok {
				out = append(out, m)
			}
		}
		return out
	}
	for id, p := range now.Profiles {
		was, ok := old.Profiles[id]
		if !ok {
			u.AddProfiles = append(u.AddProfiles, p)
			continue
		}
		if gone := missing(was.Allow, p.Allow); gone != nil {
			u.Disallow[id] = gone
		}
		if fresh := missing(p.Allow, was.Allow); fresh != nil {
			u.Allow[id] = fresh
		}
	}
	for id := range old.Profiles {
		if _, ok := now.Profiles[id]; !ok {
			u.RemoveProfiles = append(u.RemoveProfiles, id)
		}
	}
	for a, id := range now.Identities {
		if old.Identities[a] != id {
			u.Identities[a] = id
		}
	}
	for a := range old.Identities {
		if now.Identities[a] == ruleset.World {
			u.Identities[a] = ruleset.World
		}
	}
	for first, n := range now.Ranges {
		if old.Ranges[first] != n {
			u.AddRanges = append(u.AddRanges, n)
		}
	}
	for first, n := range old.Ranges {
		if now.Ranges[first] != n {
			u.RemoveRanges = append(u.RemoveRanges, n)
		}
	}
	for a, p := range now.Pods {
		if old.Pods[a] != p {
			u.SetPods = append(u.SetPods, p)
		}
	}
	for a := range old.Pods {
		if _, ok := now.Pods[a]; !ok {
			u.RemovePods = append(u.RemovePods, a)
		}
	}
	return u
}

// mutate returns a ruleset that differs in some respects.
func mutate(r *rand.Rand, old *ruleset.Ruleset) *ruleset.Ruleset {
	now, other := ruleset.New(), random(r)
	now.Apply(old.All())
	if r.IntN(2) == 0 {
		now.Identities = other.Identities
	}
	if r.IntN(3) == 0 {
		now.Ranges = other.Ranges
	}
	for id, p := range now.Profiles {
		if r.IntN(2) == 0 {
			continue
		}
		p.Allow = randomAllow(r)
		now.Profiles[id] = p
	}
	if r.IntN(3) == 0 {
		now.Profiles, now.Pods = other.Profiles, other.Pods
	}
	return now
}

// ports returns a ruleset with matches as Read returns them.
func ports(r *ruleset.Ruleset) *ruleset.Ruleset {
	out := ruleset.New()
	out.Apply(r.All())
	for id, p := range out.Profiles {
		p.Policies = nil
		for m := range maps.Clone(p.Allow) {
			if whatOf(m) != port {
				continue
			}
			delete(p.Allow, m)
			for n := int(m.First); n <= int(m.Last); n++ {
				one := m
				one.First, one.Last = uint16(n), uint16(n)
				p.Allow[one] = struct{}{}
			}
		}
		out.Profiles[id] = p
	}
	return out
}

// agree checks that the kernel has what a ruleset says.
func agree(t testing.TB, table *Table, want *ruleset.Ruleset) {
	t.Helper()
	wrong, err := table.Verify()
	must(t, err)
	if len(wrong) > 0 {
		t.Fatalf("the kernel differs: %s", strings.Join(wrong, "\n"))
	}
	got, err := table.Read()
	must(t, err)
	for id := range table.unused {
		delete(got.Profiles, id)
	}
	if want = ports(want); !reflect.DeepEqual(got, want) {
		t.Fatalf("read back:\n%+v\nwant:\n%+v", got, want)
	}
}

// TestMaintainedAfterTeardown removes the table, also one that others have removed already: nothing
// of it comes back.
func TestMaintainedAfterTeardown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node")
	netnstest.Make(t, path)
	table, err := Open(path, instance)
	must(t, err)
	defer table.Close()
	for _, byOthers := range []bool{false, true} {
		must(t, table.Load(small()))
		must(t, table.Apply(&ruleset.Update{RemovePods: []netip.Addr{locals[0], locals[4]}, RemoveProfiles: []ruleset.ProfileID{"server"}}))
		if table.Unused() != 1 {
			t.Fatalf("%d profiles are unused, want 1", table.Unused())
		}
		if byOthers {
			must(t, table.kernel.Conn.Transact(table.kernel.Delete()))
		}
		must(t, table.Teardown())
		must(t, table.Reap())
		must(t, table.Repair())
		if exists, err := table.Exists(); err != nil || exists || table.Unused() > 0 {
			t.Errorf("the table exists: %v, %v; %d profiles are unused", exists, err, table.Unused())
		}
	}
}

// TestUpdates applies random updates, and compares what the kernel has with what Load would make.
func TestUpdates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node")
	netnstest.Make(t, path)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	table, err := Open(path, instance)
	must(t, err)
	defer table.Close()
	now := random(r)
	must(t, table.Load(now))
	for i := range 60 {
		next := mutate(r, table.wanted)
		before := table.unused
		must(t, table.Apply(between(table.wanted, next)))
		if table.unsure || len(before) > 0 && reflect.ValueOf(before).Pointer() != reflect.ValueOf(table.unused).Pointer() {
			t.Fatal("the kernel refused an update")
		}
		agree(t, table, next)
		switch i % 6 {
		case 2:
			must(t, table.Reap())
			if table.Unused() != 0 {
				t.Fatal("profiles are left")
			}
			agree(t, table, next)
		case 4: // a profile that was removed comes back with other contents
			for id, p := range table.unused {
				p.Allow = map[ruleset.Match]struct{}{{Identity: 77, Protocol: ruleset.Every}: {}}
				must(t, table.Apply(&ruleset.Update{AddProfiles: []ruleset.Profile{p}}))
				next.Profiles[id] = p
			}
			agree(t, table, next)
		case 5: // another process
			must(t, table.Close())
			table, err = Open(path, instance)
			must(t, err)
			must(t, table.Load(mutate(r, next)))
			agree(t, table, table.wanted)
		}
	}
}

// small is a ruleset of one isolated pod and one that isn't.
func small() *ruleset.Ruleset {
	rs := ruleset.New()
	for i, a := range []netip.Addr{far[0], far[4]} {
		rs.Identities[a] = 1
		isolated, open := locals[i*4], locals[i*4+1]
		rs.Pods[isolated] = ruleset.Pod{Addr: isolated, Ingress: "server", Egress: "client"}
		rs.Pods[open] = ruleset.Pod{Addr: open}
	}
	one := func(id ruleset.ProfileID, d policy.Direction) {
		rs.Profiles[id] = ruleset.Profile{ID: id, Direction: d, Allow: map[ruleset.Match]struct{}{
			{Identity: 1, Protocol: ruleset.Protocol(policy.TCP), First: 80, Last: 81}: {},
			{Identity: 1, Protocol: ruleset.Protocol(policy.UDP), First: 80, Last: 90}: {},
			{Identity: 1, Protocol: ruleset.Other}:                                     {},
		}}
	}
	one("server", policy.Ingress)
	one("client", policy.Egress)
	return rs
}

// othersChanges are changes of the table of small by nft.
func othersChanges() [][]string {
	name := instance.PolicyTable()
	return [][]string{
		{"flush", "ruleset"},
		{"delete", "element", "inet", name, "id4", "{ 10.99.0.1 }"},
		{"add", "element", "inet", name, "id4", "{ 10.99.0.7 : 0:5 }"},
		{"delete", "element", "inet", name, "in-pod4", "{ 10.88.0.1 }"},
		{"delete", "element", "inet", name, "in-server-port", "{ 0:1 . tcp . 80 }"},
		{"add", "element", "inet", name, "in-server-any", "{ 0:0 }"},
		{"add", "rule", "inet", name, "forward", "drop"},
		{"insert", "rule", "inet", name, "in-server", "return"},
		{"flush", "chain", "inet", name, "in"},
		{"flush", "chain", "inet", name, "in-server"},
		{"add", "chain", "inet", name, "in-stranger"},
		{"add", "table", "inet", name, "{ flags dormant; }"},
	}
}

// TestOthers checks that others can't change the table, or that what they change is found and put
// back. Before Linux 6.9, and after huskd has ended, they can.
func TestOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node")
	netnstest.Make(t, path)
	nft := func(args ...string) error {
		_, err := netnstest.Try(path, append([]string{"nft"}, args...)...)
		return err
	}
	name, changes := instance.PolicyTable(), othersChanges()
	for _, owned := range []bool{true, false} {
		t.Run(fmt.Sprint("owned=", owned), func(t *testing.T) {
			table, err := Open(path, instance)
			must(t, err)
			defer func() { must(t, table.Close()) }()
			if !owned {
				table.kernel.Shared = true
			}
			rs := small()
			must(t, table.Load(rs))
			rs.Profiles["server"].Allow[ruleset.Match{Identity: 9, Protocol: ruleset.Every}] = struct{}{}
			must(t, table.Load(rs))
			for _, change := range changes {
				err := nft(change...)
				wrong, verr := table.Verify()
				must(t, verr)
				if owned {
					if len(wrong) > 0 {
						t.Errorf("nft %s: %v, %v", change, err, wrong)
					}
					continue
				}
				if err != nil || len(wrong) == 0 {
					t.Errorf("nft %s: %v; not found", change, err)
				}
				must(t, table.Repair())
				agree(t, table, rs)
			}
			must(t, table.Teardown())
			if exists, err := table.Exists(); err != nil || exists {
				t.Errorf("after Teardown: %v, %v", exists, err)
			}
		})
	}
	t.Run("an update repairs", func(t *testing.T) {
		table, err := Open(path, instance)
		must(t, err)
		defer func() { must(t, table.Close()) }()
		table.kernel.Shared = true
		must(t, table.Load(small()))
		must(t, nft("delete", "element", "inet", name, "id4", "{ 10.99.0.1 }"))
		must(t, table.Apply(&ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{far[0]: 7}}))
		agree(t, table, table.wanted)
		must(t, nft("flush", "ruleset"))
		must(t, table.Apply(&ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{far[0]: 8}}))
		agree(t, table, table.wanted)
	})
	t.Run("two processes", func(t *testing.T) {
		first, err := Open(path, instance)
		must(t, err)
		second, err := Open(path, instance)
		must(t, err)
		defer func() { must(t, second.Close()) }()
		must(t, first.Load(small()))
		if err := second.Load(small()); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a table that another process has: %v", err)
		}
		if err := second.Teardown(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("Teardown of a table that another process has: %v", err)
		}
		must(t, first.Close())
		must(t, second.Load(small()))
		agree(t, second, small())
	})
}

// TestMaintain checks that what others change is put back at once.
func TestMaintain(t *testing.T) {
	l := newLab(t)
	table := l.open()
	table.kernel.Shared = true
	rs := small()
	rs.Profiles["server"].Allow[ruleset.Match{Identity: 9, Protocol: ruleset.Every}] = struct{}{}
	must(t, table.Load(rs))
	lines := &logLines{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		table.Maintain(ctx, slog.New(slog.NewTextHandler(lines, nil)))
		close(ended)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	nft := func(change []string) func() bool {
		l.nft(change...)
		began := time.Now()
		return func() bool {
			wrong, err := table.Verify()
			must(t, err)
			if len(wrong) == 0 {
				t.Logf("nft %s: back after %v", change, time.Since(began))
			}
			return len(wrong) == 0
		}
	}
	l.nft("add", "table", "inet", "stranger")
	for _, change := range othersChanges() {
		eventually(t, fmt.Sprint("the repair after nft ", change), nft(change))
	}
	again := []string{"again and again"}
	eventually(t, fmt.Sprint("a line of the log with ", again), func() bool {
		eventually(t, "the repair", nft([]string{"flush", "ruleset"}))
		return lines.has(again[0])
	})
}

// logLines are the lines of a log.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// TestRepairEndsConnections checks that a connection ends that began while the table was gone and
// is denied.
func TestRepairEndsConnections(t *testing.T) {
	l := newLab(t)
	l.serve()
	table := l.open()
	table.kernel.Shared = true
	l.nft("add table inet t; add chain inet t c { type filter hook forward priority 0; }; add rule inet t c ct state established accept")
	rs := ruleset.New()
	rs.Profiles["p"] = ruleset.Profile{ID: "p", Direction: policy.Ingress, Allow: map[ruleset.Match]struct{}{}}
	rs.Pods[locals[0]] = ruleset.Pod{Addr: locals[0], Ingress: "p"}
	rs.Pods[locals[1]] = ruleset.Pod{Addr: locals[1]}
	for what, repair := range map[string]func() error{
		"Repair": table.Repair,
		"Apply": func() error {
			return table.Apply(&ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{far[0]: 7}})
		},
	} {
		must(t, table.Load(rs))
		_, err := table.EndFlows()
		must(t, err)
		flow := policy.Flow{From: locals[1], To: locals[0], Protocol: policy.UDP, Port: 80}
		if err := l.probe(flow, brevity); !errors.Is(err, errDenied) {
			t.Fatalf("denied: %v", err)
		}
		l.nft("delete", "table", "inet", instance.PolicyTable())
		must(t, l.probe(flow, patience))
		must(t, repair())
		if n, err := table.EndFlows(); err != nil || n != 1 {
			t.Errorf("%s: %d connections ended: %v", what, n, err)
		}
	}
}

// TestList checks that nft lists the table, and takes what it lists.
func TestList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node")
	netnstest.Make(t, path)
	table, err := Open(path, instance)
	must(t, err)
	defer table.Close()
	must(t, table.Load(random(rand.New(rand.NewPCG(1, 2)))))
	list := netnstest.Run(t, path, "nft", "list", "ruleset")
	file := filepath.Join(t.TempDir(), "rules")
	must(t, os.WriteFile(file, []byte(strings.Replace(list, "flags owner", "", 1)), 0o600))
	other := filepath.Join(t.TempDir(), "other")
	netnstest.Make(t, other)
	netnstest.Run(t, other, "nft", "-f", file)
	sorted := func(s string) []string {
		lines := strings.Split(s, "\n")
		for i := range lines {
			lines[i] = strings.Trim(strings.TrimSpace(lines[i]), ",")
		}
		slices.Sort(lines)
		return slices.DeleteFunc(lines, func(l string) bool {
			return strings.HasPrefix(l, "table ") || strings.HasPrefix(l, "flags owner") || l == ""
		})
	}
	again := netnstest.Run(t, other, "nft", "list", "ruleset")
	if len(sorted(again)) != len(sorted(list)) {
		t.Errorf("nft lists\n%s\nand makes of it\n%s", list, again)
	}
}

// TestInForce checks what passes while huskd ends, starts again, loads the same policies, and
// changes others: no allowed packet is lost, and no other passes.
func TestInForce(t *testing.T) {
	l := newLab(t)
	l.serve()
	table, err := Open(l.node, instance)
	must(t, err)
	must(t, table.Load(small()))
	table.wanted.Profiles["server"].Allow[ruleset.Match{Identity: 1, Protocol: ruleset.Protocol(policy.SCTP), First: 80, Last: 80}] = struct{}{}
	must(t, table.Repair())
	rs := table.wanted
	s := l.spray(far[0], locals[0])
	for i := 0; i < 100 || s.sent.Load() < 200; i++ {
		must(t, table.Close())
		table, err = Open(l.node, instance)
		must(t, err)
		again := ruleset.New()
		again.Apply(rs.All())
		must(t, table.Load(again))
		// Updates that the connection doesn't depend on, in the same sets as what it depends on.
		p := again.Profiles["server"]
		p.ID = ruleset.ProfileID(fmt.Sprint("server", i))
		pods := []ruleset.Pod{{Addr: locals[0], Ingress: p.ID, Egress: "client"}, {Addr: locals[2], Ingress: "server", Egress: "client"}}
		must(t, table.Apply(&ruleset.Update{AddProfiles: []ruleset.Profile{p}, SetPods: pods, Identities: map[netip.Addr]ruleset.Identity{far[1]: 2}}))
		must(t, table.Apply(&ruleset.Update{SetPods: []ruleset.Pod{rs.Pods[locals[0]]}, RemovePods: []netip.Addr{locals[2]}, RemoveProfiles: []ruleset.ProfileID{p.ID}}))
		must(t, table.Reap())
	}
	s.end(l)
	// The table wasn't made anew.
	if d, err := table.Denied(); err != nil || d.Profiles["server"] == 0 {
		t.Errorf("counted %+v, %v", d, err)
	}
	must(t, table.Close())
}

// TestMoveToNewProfile sends as many denied packets as it can while the pod that they are for gets
// one new profile after the other, by updates and by restarts. None may pass: the kernel looks the
// pod up in the map as it is after a transaction for packets that have the rules of before it.
func TestMoveToNewProfile(t *testing.T) {
	l := newLab(t)
	l.nft("add table inet witness { counter passed { }; chain c { type filter hook forward priority 100; udp dport 90 counter name passed; }; }")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		sent := 0
		_ = l.in(far[0], func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(locals[0], 90).String())
			if err != nil {
				return err
			}
			defer c.Close()
			for ; ctx.Err() == nil; sent++ {
				_, _ = c.Write([]byte("x"))
			}
			return nil
		})
		done <- sent
	}()
	profile := func(i int) ruleset.Profile {
		return ruleset.Profile{ID: ruleset.ProfileID(fmt.Sprint("p", i)), Direction: policy.Ingress, Allow: map[ruleset.Match]struct{}{{Identity: 7, Protocol: ruleset.Every}: {}}}
	}
	table, err := Open(l.node, instance)
	must(t, err)
	rs := ruleset.New()
	set := func(rs *ruleset.Ruleset, i int) {
		rs.Profiles[profile(i).ID] = profile(i)
		rs.Pods[locals[0]] = ruleset.Pod{Addr: locals[0], Ingress: profile(i).ID}
	}
	set(rs, 0)
	must(t, table.Load(rs))
	passed := func() string { return l.nft("list", "counter", "inet", "witness", "passed") }
	before, i := passed(), 1
	for end := time.Now().Add(brevity * 10); time.Now().Before(end); i++ {
		if i%20 != 0 {
			must(t, table.Apply(&ruleset.Update{AddProfiles: []ruleset.Profile{profile(i)}, RemoveProfiles: []ruleset.ProfileID{profile(i - 1).ID},
				SetPods: []ruleset.Pod{{Addr: locals[0], Ingress: profile(i).ID}}}))
			continue
		}
		must(t, table.Close())
		table, err = Open(l.node, instance)
		must(t, err)
		rs := ruleset.New()
		set(rs, i)
		must(t, table.Load(rs))
	}
	stop()
	t.Logf("%d profiles, %d packets", i, <-done)
	if after := passed(); after != before {
		t.Errorf("packets that are denied have passed: %s, and before %s", after, before)
	}
	must(t, table.Close())
}

// sprayer opens connections to an allowed port, 80, and one that is denied, 90.
type sprayer struct {
	sent         atomic.Int64
	passed, lost int
	stop         context.CancelFunc
	done         chan error
}

func (l *lab) spray(from, to netip.Addr) *sprayer {
	ctx, stop := context.WithCancel(l.t.Context())
	s := &sprayer{stop: stop, done: make(chan error)}
	open := func() error {
		c, err := net.DialIP("ip4:132", nil, &net.IPAddr{IP: to.AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		for tag := uint32(1); ctx.Err() == nil; tag++ {
			good, bad := sctpInit(uint16(1024+tag%60000), 80, tag), sctpInit(uint16(1024+tag%60000), 90, tag)
			for _, p := range [][]byte{bad, good} {
				if _, err := c.Write(p); err != nil {
					return err
				}
			}
			s.sent.Add(1)
			// The two took the same way, one after the other.
			for end := time.Now().Add(patience / 10); ; time.Sleep(50 * time.Microsecond) {
				if _, ok := l.listen.LoadAndDelete(string(good)); ok {
					break
				}
				if time.Now().After(end) {
					s.lost++
					break
				}
			}
			if _, ok := l.listen.LoadAndDelete(string(bad)); ok {
				s.passed++
			}
		}
		return nil
	}
	go func() { s.done <- l.in(from, open) }()
	return s
}

// end stops and checks that what should have passed has, and nothing else.
func (s *sprayer) end(l *lab) {
	l.t.Helper()
	s.stop()
	must(l.t, <-s.done)
	l.t.Logf("%d connections", s.sent.Load())
	if s.passed > 0 || s.lost > 0 {
		l.t.Errorf("of %d connections, %d allowed ones were lost and %d denied ones passed", s.sent.Load(), s.lost, s.passed)
	}
}

// TestEndFlows checks that open connections end when they are no longer allowed, and only those.
func TestEndFlows(t *testing.T) {
	l := newLab(t)
	l.serve()
	table := l.open()
	for _, client := range []netip.Addr{far[0], far[4], locals[1], locals[5]} {
		// The server is isolated. Then the client is, with a server that isn't.
		for _, server := range []netip.Addr{locals[0], locals[4], locals[2], locals[6]} {
			if client.Is4() != server.Is4() {
				continue
			}
			for _, egress := range []bool{false, true} {
				if egress && isFar(client) {
					continue
				}
				t.Run(fmt.Sprintf("%s to %s, egress %v", client, server, egress), func(t *testing.T) {
					l.endFlow(t, table, client, server, egress)
				})
			}
		}
	}
}

func (l *lab) endFlow(t *testing.T, table *Table, client, server netip.Addr, egress bool) {
	rs := ruleset.New()
	allow := map[ruleset.Match]struct{}{{Identity: 1, Protocol: ruleset.Every}: {}}
	isolated, other, d := server, client, policy.Ingress
	p := ruleset.Pod{Addr: server, Ingress: "p"}
	if egress {
		isolated, other, d = client, server, policy.Egress
		p = ruleset.Pod{Addr: client, Egress: "p"}
	}
	rs.Profiles["p"] = ruleset.Profile{ID: "p", Direction: d, Allow: allow}
	rs.Pods[isolated] = p
	if !isFar(other) {
		rs.Pods[other] = ruleset.Pod{Addr: other}
	}
	rs.Identities[other] = 1
	must(t, table.Load(rs))
	l.forget(table)
	_, err := table.EndFlows()
	must(t, err)

	type end struct{ near, remote net.Conn }
	open := func() (c end) {
		t.Helper()
		var listener net.Listener
		must(t, l.in(server, func() (err error) {
			listener, err = net.Listen("tcp", netip.AddrPortFrom(server, 0).String())
			return err
		}))
		defer listener.Close()
		must(t, l.in(client, func() (err error) {
			d := dialer(client, "tcp", patience)
			c.near, err = d.Dial("tcp", listener.Addr().String())
			return err
		}))
		var err error
		c.remote, err = listener.Accept()
		must(t, err)
		t.Cleanup(func() { c.near.Close(); c.remote.Close() })
		return c
	}
	// arrives reports whether what one end sends reaches the other.
	arrives := func(from, to net.Conn, within time.Duration) bool {
		t.Helper()
		_, err := from.Write([]byte("x"))
		must(t, err)
		_ = to.SetReadDeadline(time.Now().Add(within))
		n, _ := to.Read(make([]byte, 100))
		return n > 0
	}
	c := open()
	var udp net.Conn
	must(t, l.in(client, func() (err error) {
		d := dialer(client, "udp", patience)
		udp, err = d.Dial("udp", netip.AddrPortFrom(server, 80).String())
		return err
	}))
	defer udp.Close()
	if !arrives(c.near, c.remote, patience) || !arrives(c.remote, c.near, patience) || !arrives(udp, udp, patience) {
		t.Fatal("an allowed connection doesn't work")
	}
	// What is still allowed goes on.
	must(t, table.Apply(&ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{other: 2}, Allow: map[ruleset.ProfileID][]ruleset.Match{"p": {{Identity: 2, Protocol: ruleset.Every}}}}))
	if n, err := table.EndFlows(); err != nil || n != 0 {
		t.Errorf("%d connections ended that are allowed: %v", n, err)
	}
	if !arrives(c.near, c.remote, patience) || !arrives(udp, udp, patience) {
		t.Fatal("an allowed connection ended")
	}
	must(t, table.Apply(&ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{other: 3}}))
	if n, err := table.EndFlows(); err != nil || n != 2 {
		t.Errorf("%d connections ended: %v", n, err)
	}
	// The end that accepted sends first, which would begin the connection anew.
	if arrives(c.remote, c.near, brevity) || arrives(c.near, c.remote, brevity) || arrives(udp, udp, brevity) {
		t.Error("a connection goes on that is denied")
	}
	if n, err := table.EndFlows(); err != nil || n != 0 {
		t.Errorf("%d connections ended twice: %v", n, err)
	}
	// Allowed again, it goes on only after a new SYN; a new connection works.
	must(t, table.Apply(&ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{other: 1}}))
	open()
}

// TestNodeIsNotJudged checks that connections of the node to its pods stay.
func TestNodeIsNotJudged(t *testing.T) {
	l := newLab(t)
	l.serve()
	netnstest.IP(t, l.node, "addr add 10.88.0.254/32 dev lo")
	table := l.open()
	rs := ruleset.New()
	rs.Profiles["none"] = ruleset.Profile{ID: "none", Direction: policy.Ingress, Allow: map[ruleset.Match]struct{}{}}
	rs.Pods[locals[0]] = ruleset.Pod{Addr: locals[0], Ingress: "none"}
	must(t, table.Load(rs))
	must(t, netns.Do(l.node, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(locals[0], 80).String(), patience)
		if err != nil {
			return timedOut(err)
		}
		return c.Close()
	}))
	table.stale = true
	if n, err := table.EndFlows(); err != nil || n != 0 {
		t.Errorf("%d of the node's own connections were ended: %v", n, err)
	}
}

// TestPriority checks that packets leave the table without a trace of it.
func TestPriority(t *testing.T) {
	l := newLab(t)
	l.serve()
	table := l.open()
	rs := small()
	rs.Pods[locals[2]] = ruleset.Pod{Addr: locals[2], Egress: "client"}
	rs.Identities[locals[0]], rs.Identities[locals[2]] = 1, 1
	must(t, table.Load(rs))
	l.nft("add table inet t; add chain inet t c { type filter hook forward priority 10; }; add rule inet t c meta priority != 0 counter")
	for _, f := range []policy.Flow{{From: locals[0], To: far[0]}, {From: far[4], To: locals[4]}, {From: locals[2], To: locals[0]}, {From: locals[0], To: locals[1]}} {
		f.Protocol, f.Port = policy.TCP, 80
		if rs.Allows(f) {
			must(t, l.probe(f, patience))
		}
	}
	if out := l.nft("list", "table", "inet", "t"); !strings.Contains(out, "packets 0 bytes 0") {
		t.Errorf("packets have a priority:\n%s", out)
	}
}

// TestRelated checks that errors about an allowed connection reach the pod.
func TestRelated(t *testing.T) {
	l := newLab(t)
	table := l.open()
	rs := small()
	for id, p := range rs.Profiles {
		p.Allow = map[ruleset.Match]struct{}{{Identity: 1, Protocol: ruleset.Protocol(policy.UDP), Last: 65535}: {}}
		rs.Profiles[id] = p
	}
	must(t, table.Load(rs))
	for _, f := range []policy.Flow{{From: locals[0], To: far[0]}, {From: locals[4], To: far[4]}} {
		must(t, l.in(f.From, func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(f.To, 7).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
				return fmt.Errorf("the port is closed, but: %w", err)
			}
			return nil
		}))
	}
}

// TestDenials checks what is logged and counted.
func TestDenials(t *testing.T) {
	l := newLab(t)
	l.serve()
	table := l.open()
	must(t, table.Load(small()))
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan Denial, 1000)
	ended := make(chan error)
	go func() { ended <- table.Denials(ctx, func(d Denial) { seen <- d }) }()
	next := func() Denial {
		t.Helper()
		select {
		case d := <-seen:
			return d
		case <-time.After(patience):
			t.Fatal("nothing was logged")
			return Denial{}
		}
	}
	// Wait until it listens.
	want := Denial{policy.Ingress, "server", policy.Flow{From: far[1], To: locals[0], Protocol: policy.UDP, Port: 81}}
	eventually(t, "a denial is logged", func() bool {
		if err := l.probe(want.Flow, time.Millisecond); !errors.Is(err, errDenied) {
			t.Fatal(err)
		}
		return len(seen) > 0
	})
	if got := next(); got != want {
		t.Errorf("logged %+v, want %+v", got, want)
	}
	for _, f := range []policy.Flow{
		{From: locals[4], To: far[5], Protocol: policy.TCP, Port: 90},
		{From: locals[0], To: far[3], Protocol: unix.IPPROTO_ICMP},
		{From: locals[4], To: far[4], Protocol: policy.SCTP, Port: 80},
	} {
		if err := l.probe(f, brevity); !errors.Is(err, errDenied) {
			t.Fatalf("%+v: %v", f, err)
		}
		for want := (Denial{policy.Egress, "client", f}); next() != want; {
		}
	}
	if err := l.probe(policy.Flow{From: far[0], To: locals[3], Protocol: policy.UDP, Port: 80}, time.Millisecond); !errors.Is(err, errDenied) {
		t.Fatal(err)
	}
	d, err := table.Denied()
	must(t, err)
	if d.Profiles["server"] == 0 || d.Profiles["client"] < 3 || d.Unknown[policy.Ingress] != 1 || d.Unknown[policy.Egress] != 0 {
		t.Errorf("counted %+v", d)
	}
	// A reload keeps the counters.
	must(t, table.Load(small()))
	if again, err := table.Denied(); err != nil || again.Profiles["client"] < d.Profiles["client"] {
		t.Errorf("after a reload, counted %+v, %v", again, err)
	}
	cancel()
	must(t, <-ended)
}

func TestProfileNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node")
	netnstest.Make(t, path)
	table, err := Open(path, instance)
	must(t, err)
	defer table.Close()
	for _, name := range []ruleset.ProfileID{"a b", "", "x;", ruleset.ProfileID(strings.Repeat("x", 65))} {
		rs := ruleset.New()
		rs.Profiles[name] = ruleset.Profile{ID: name, Direction: policy.Ingress}
		if err := table.Load(rs); err == nil {
			t.Errorf("profile %q was loaded", name)
		}
	}
	if err := table.Apply(&ruleset.Update{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an update before Load: %v", err)
	}
}

// FuzzParse checks that malformed messages don't crash the parsers.
func FuzzParse(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 20})
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 0, 44, 1}, make([]byte, 40)...))
	f.Add([]byte(nftable.Attributes{}.Nested(unix.NFTA_SET_ELEM_KEY, nftable.Attributes{}.Text(unix.NFTA_DATA_VALUE, "key"))))
	f.Fuzz(func(_ *testing.T, data []byte) {
		parsePacket(data)
		parseDenial(data)
		parseElement(data)
		nftable.ParseComment(data)
		nftable.ParseCounter(data)
	})
}
