package crash

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

var kills = flag.Int("kills", 20, "how often TestPolicyAcrossKills kills huskd")

// dbPolicy isolates the pod db: only web reaches it, and it reaches only web.
const dbPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: crash}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]
  egress: [{to: [{podSelector: {matchLabels: {app: web}}}]}]
`

// noisePolicy changes the rules of a pod, and allows nothing that tests try.
const noisePolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: noise-%d, namespace: crash}
spec:
  podSelector: {matchLabels: {app: %s}}
  ingress: [{from: [{podSelector: {matchLabels: {app: noise-%d}}}, {ipBlock: {cidr: 192.0.2.%d/32}}], ports: [{port: %d}]}]
`

func (m *machine) noise(app string, i int) string {
	return fmt.Sprintf(noisePolicy, i, app, i, i%256, 1+m.r.IntN(65535))
}

// outsidePolicy isolates all pods from what is elsewhere.
const outsidePolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: outside, namespace: crash}
spec:
  podSelector: {}
  ingress: [{from: [{podSelector: {}}]}]
`

// manifests is the directory of manifests that huskd reads.
func (m *machine) manifests() string { return filepath.Join(m.Dir, "manifests") }

// readManifests starts huskd again, so that it reads the manifests.
func (m *machine) readManifests() {
	m.flags = append(m.flags, node.Flags("--manifests", m.manifests()))
	m.d.Stop()
	m.restart()
}

// declare makes a file of manifests, changes it, or removes it if there is no text. It does so in
// one step, as huskd may read it at any time.
func (m *machine) declare(name, text string) {
	m.t.Helper()
	err := os.MkdirAll(m.manifests(), 0o755)
	if err == nil && text == "" {
		if err = os.Remove(filepath.Join(m.manifests(), name)); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	} else if err == nil {
		if err = os.WriteFile(filepath.Join(m.Dir, name), []byte(text), 0o600); err == nil {
			err = os.Rename(filepath.Join(m.Dir, name), filepath.Join(m.manifests(), name))
		}
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// sprayFromOutside tries to reach the addresses that pods get from another host, which policy
// denies, and counts what reaches pods' links.
func (m *machine) sprayFromOutside() (*traffic, *witness) {
	m.t.Helper()
	outside, pods := member{netns: m.OtherNet()}, member{}
	for family, net := range map[string]struct{ prefix, via string }{"-4": {"10.201.0.0/16", node.Address4}, "-6": {"fd68:7573:6b00::/64", node.Address6}} {
		if r := m.RunOther("ip", family, "route", "replace", net.prefix, "via", net.via); r.Code != 0 {
			m.t.Fatal(r)
		}
		a := netip.MustParsePrefix(net.prefix).Addr().Next() // the node's
		for range 6 {
			a = a.Next()
			pods.addresses = append(pods.addresses, a)
		}
	}
	w := m.witness(map[string]string{"outside": fmt.Sprintf(`iifname "up0" oifname "%s*" meta l4proto { tcp, udp }`, m.Instance().HostLinkPrefix())})
	tr := &traffic{t: m.t}
	m.t.Cleanup(tr.stop)
	tr.spray(outside, pods)
	return tr, w
}

// nothingPassed fails the test if something reached a pod from outside. It ends the traffic.
func (m *machine) nothingPassed(tr *traffic, w *witness) {
	m.t.Helper()
	tr.stop()
	before, after := w.read()
	m.t.Logf("%d of %d packets from outside reached a pod", after["outside"], before["outside"])
	if after["outside"] > 0 || before["outside"] == 0 {
		m.t.Errorf("%d of %d packets from outside reached a pod, want none of some", after["outside"], before["outside"])
	}
	m.Must("nft", "delete", "table", "inet", "witness")
}

// policyTable returns how many chains of profiles, and how many local pods, the table of policies
// has, or -1 without a table.
func (m *machine) policyTable() (chains, pods int) {
	r := m.Run("nft", "list", "table", "inet", m.Instance().PolicyTable())
	if r.Code != 0 {
		return -1, -1
	}
	own := regexp.MustCompile(`set self4 \{[^}]*elements = \{([^}]*)\}`).FindStringSubmatch(r.Stdout)
	if own != nil {
		pods = strings.Count(own[1], " . ")
	}
	return strings.Count(r.Stdout, "chain in-") + strings.Count(r.Stdout, "chain out-"), pods
}

// tableHas waits until the table of policies has some pods with a profile each; -1 is no table.
func (m *machine) tableHas(when string, want int) {
	m.t.Helper()
	node.Eventually(m.t, time.Minute, func() string {
		if m.d.Wait(time.Millisecond) { // it was killed while it removed what isn't used any more
			m.restart()
		}
		if chains, pods := m.policyTable(); chains != want || pods != want {
			return fmt.Sprintf("%s, the table has %d chains of profiles and %d pods, want %d", when, chains, pods, want)
		}
		return ""
	})
}

// changePolicy changes or removes a policy of a pod.
func (m *machine) changePolicy(app string) {
	text := ""
	if i := m.r.IntN(1000); i%3 > 0 {
		text = m.noise(app, i)
	}
	m.note("policy of %s: %s", app, strings.Join(strings.Fields(text), " "))
	m.declare(app+".yaml", text)
}

// policyPoints are the crash points of what writes policies.
var policyPoints = []string{"policy.admitted", "policy.forgotten", "policy.saving", "policytable.commit", "policytable.committed", "policytable.end"}

// TestPolicyCrashPoints kills huskd at each write of policies: while it starts, a pod comes, the
// policies change, and the pod goes. Nothing from outside may ever reach a pod, the next huskd
// completes what was begun, and the table has nothing of the pod at the end.
func TestPolicyCrashPoints(t *testing.T) {
	t.Parallel()
	m := newMachine(t, *seed, false)
	m.declare("outside.yaml", outsidePolicy)
	m.readManifests()
	m.tableHas("at the start", 1)
	tr, w := m.sprayFromOutside()
	round := 0
	// steps are taken by a huskd that may be killed, and completed by the next one.
	steps := []func(name string, try int) bool{
		func(name string, try int) bool {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, _, err := m.up(ctx, name, try) // the sandbox of the former try may be there
			return err == nil
		},
		func(string, int) bool {
			text := m.noise("bystander", round)
			m.declare("noise.yaml", text)
			for !m.d.Wait(10 * time.Millisecond) {
				if strings.Contains(m.Husk("net", "policy", "crash/bystander").Stdout, fmt.Sprint("crash/noise-", round)) {
					return true
				}
			}
			return false
		},
		func(name string, _ int) bool {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return m.end(ctx, name, true) == nil
		},
		func(string, int) bool {
			m.declare("noise.yaml", "")
			for !m.d.Wait(10 * time.Millisecond) {
				if r := m.Husk("net", "policy", "crash/bystander"); r.Code == 0 && !strings.Contains(r.Stdout, "noise") {
					return true
				}
			}
			return false
		},
	}
	killed := 0
	for _, point := range policyPoints {
		for nth := 1; ; nth++ {
			round++
			what, name := fmt.Sprintf("%s#%d", point, nth), fmt.Sprintf("victim-%d", round)
			m.d.Stop()
			mortal := m.Launch(append(slices.Clone(m.flags), node.Env(crashpoint.Env, what))...)
			for m.d = mortal; !m.Serves() && !m.d.Wait(10*time.Millisecond); {
				continue
			}
			for _, step := range steps {
				end := time.Now().Add(time.Minute)
				for try := 0; !step(name, try); try++ {
					if m.d.Wait(100 * time.Millisecond) {
						m.restart()
					} else if time.Now().After(end) {
						t.Fatalf("%s: a step failed %d times", what, try)
					}
				}
			}
			// What follows the last step, such as the end of connections, may be where it ends.
			if m.d == mortal && mortal.Wait(300*time.Millisecond) {
				m.restart()
			}
			m.tableHas(what, 1)
			if m.d == mortal {
				break
			}
			killed++
		}
	}
	t.Logf("huskd was killed %d times", killed)
	m.nothingPassed(tr, w)
	// The removal of all.
	m.d.Stop()
	m.d = m.Launch(append(slices.Clone(m.flags), node.Env(crashpoint.Env, "policytable.teardown"))...)
	m.declare("outside.yaml", "")
	if !m.d.Wait(time.Minute) {
		t.Fatal("huskd was not killed when it removes the table")
	}
	m.restart()
	m.tableHas("without policies", -1)
	m.checkBystander()
	m.empty()
}

// member is a pod of TestPolicyAcrossKills.
type member struct {
	netns     string
	addresses []netip.Addr // one of each family
}

// member creates a pod, and returns where it is.
func (m *machine) member(name string) member {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	sandbox, container, err := m.up(ctx, name, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	status, err := m.cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		m.t.Fatal(err)
	}
	pid, _, _ := strings.Cut(m.pidOf(container), "/")
	out := member{netns: "/proc/" + pid + "/ns/net"}
	network := status.GetStatus().GetNetwork()
	for _, text := range append([]string{network.GetIp()}, ips(network.GetAdditionalIps())...) {
		out.addresses = append(out.addresses, netip.MustParseAddr(text))
	}
	return out
}

func ips(list []*runtimeapi.PodIP) (out []string) {
	for _, ip := range list {
		out = append(out, ip.GetIp())
	}
	return out
}

// witness counts the packets of each way on the node, before policy judges them and afterwards.
type witness struct {
	m    *machine
	ways []string
}

// between returns what tells the packets of each way: ways are pairs of pods' names.
func between(pods map[string]member, ways ...[2]string) map[string]string {
	out := map[string]string{}
	for _, way := range ways {
		from, to := pods[way[0]], pods[way[1]]
		for i, a := range from.addresses {
			family := "ip"
			if a.Is6() {
				family = "ip6"
			}
			out[fmt.Sprintf("%s-%s-%s", way[0], way[1], family)] = fmt.Sprintf("%s saddr %s %s daddr %s", family, a, family, to.addresses[i])
		}
	}
	return out
}

// witness starts to count the packets of some ways.
func (m *machine) witness(ways map[string]string) *witness {
	m.t.Helper()
	w := &witness{m: m}
	rules := map[string]string{}
	for name, way := range ways {
		w.ways = append(w.ways, name)
		for _, when := range []string{"before", "after"} {
			m.Must("nft", fmt.Sprintf("add table inet witness; add counter inet witness %s-%s", name, when))
			rules[when] += fmt.Sprintf("; add rule inet witness %s %s counter name %s-%s", when, way, name, when)
		}
	}
	for when, priority := range map[string]int{"before": -300, "after": 300} {
		m.Must("nft", fmt.Sprintf("add chain inet witness %s { type filter hook forward priority %d; }", when, priority)+rules[when])
	}
	return w
}

var counted = regexp.MustCompile(`counter ([\w-]+) \{\s+packets (\d+)`)

// read returns how many packets were counted on a way.
func (w *witness) read() (before, after map[string]int) {
	w.m.t.Helper()
	before, after = map[string]int{}, map[string]int{}
	for _, found := range counted.FindAllStringSubmatch(w.m.Must("nft", "list", "counters", "table", "inet", "witness"), -1) {
		n, err := strconv.Atoi(found[2])
		if err != nil {
			w.m.t.Fatal(err)
		}
		if way, ok := strings.CutSuffix(found[1], "-before"); ok {
			before[way] = n
		} else {
			after[strings.TrimSuffix(found[1], "-after")] = n
		}
	}
	if len(before) != len(w.ways) || len(after) != len(w.ways) {
		w.m.t.Fatalf("counters of %d and %d ways, want %d", len(before), len(after), len(w.ways))
	}
	return before, after
}

// traffic is what pods send until it is stopped.
type traffic struct {
	t       *testing.T
	stopped atomic.Bool
	running sync.WaitGroup
	opened  atomic.Int64 // allowed connections
	asked   atomic.Int64 // requests on the steady connections
	sprayed atomic.Int64 // denied connections
}

// in calls step in a pod's namespace again and again until the traffic is stopped, or step fails.
func (tr *traffic) in(pod member, what string, begin func() (step func() error, err error)) {
	tr.running.Go(func() {
		err := netns.Do(pod.netns, func() error {
			step, err := begin()
			for ; err == nil && !tr.stopped.Load(); time.Sleep(time.Millisecond) {
				err = step()
			}
			return err
		})
		if err != nil {
			tr.t.Errorf("%s: %v", what, err)
		}
	})
}

func (tr *traffic) stop() {
	tr.stopped.Store(true)
	tr.running.Wait()
}

const (
	servedPort = 80
	// answerLimit is for a packet that was sent again a few times, on a busy machine.
	answerLimit = 30 * time.Second
)

// echo sends a byte and waits until it returns.
func echo(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(answerLimit))
	buf := []byte("x")
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := c.Read(buf)
	return err
}

// serve answers TCP and UDP in a pod until the test ends.
func (tr *traffic) serve(pod member) {
	tr.t.Helper()
	err := netns.Do(pod.netns, func() error {
		for _, a := range pod.addresses {
			at := netip.AddrPortFrom(a, servedPort)
			udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			tr.t.Cleanup(func() { _ = udp.Close() })
			go func() {
				buf := make([]byte, 1)
				for {
					n, from, err := udp.ReadFromUDPAddrPort(buf)
					if errors.Is(err, net.ErrClosed) {
						return
					}
					_, _ = udp.WriteToUDPAddrPort(buf[:n], from)
				}
			}()
			tcp, err := net.Listen("tcp", at.String())
			if err != nil {
				return err
			}
			tr.t.Cleanup(func() { _ = tcp.Close() })
			go func() {
				for {
					c, err := tcp.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						for buf := make([]byte, 1); ; {
							if _, err := c.Read(buf); err != nil {
								return
							}
							_, _ = c.Write(buf)
						}
					}()
				}
			}()
		}
		return nil
	})
	if err != nil {
		tr.t.Fatal(err)
	}
}

// steady keeps one connection open, and opens others.
func (tr *traffic) steady(from, to member) {
	for _, a := range to.addresses {
		at := netip.AddrPortFrom(a, servedPort).String()
		for _, protocol := range []string{"tcp", "udp"} {
			tr.in(from, "the steady connection by "+protocol+" to "+at, func() (func() error, error) {
				c, err := net.DialTimeout(protocol, at, answerLimit)
				if err != nil {
					return nil, err
				}
				tr.t.Cleanup(func() { _ = c.Close() })
				return func() error {
					tr.asked.Add(1)
					return echo(c)
				}, nil
			})
			tr.in(from, "a new connection by "+protocol+" to "+at, func() (func() error, error) {
				return func() error {
					c, err := net.DialTimeout(protocol, at, answerLimit)
					if err != nil {
						return err
					}
					defer c.Close()
					tr.opened.Add(1)
					if c, ok := c.(*net.TCPConn); ok {
						_ = c.SetLinger(0)
					}
					return echo(c)
				}, nil
			})
		}
	}
}

// spray begins connections that are denied.
func (tr *traffic) spray(from, to member) {
	for _, a := range to.addresses {
		address, domain := unix.Sockaddr(&unix.SockaddrInet4{Port: servedPort, Addr: [4]byte(a.AsSlice()[:4])}), unix.AF_INET
		if a.Is6() {
			address, domain = &unix.SockaddrInet6{Port: servedPort, Addr: a.As16()}, unix.AF_INET6
		}
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			tr.in(from, "the sprayer", func() (func() error, error) {
				var open []int
				return func() error {
					fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					if err := unix.Connect(fd, address); err != nil && !errors.Is(err, unix.EINPROGRESS) {
						return err
					}
					if kind == unix.SOCK_DGRAM {
						_, _ = unix.Write(fd, []byte("x"))
					}
					tr.sprayed.Add(1)
					// Closed later, so that an answer would find it.
					const held = 32
					if open = append(open, fd); len(open) > held || tr.stopped.Load() {
						_ = unix.Close(open[0])
						open = open[1:]
					}
					return nil
				}, nil
			})
		}
	}
}

// TestPolicyAcrossKills kills huskd again and again, at any moment of its start and afterwards,
// while pods under policy have steady connections, open new ones, and try what is denied. No packet
// may pass that is denied, and none may be dropped that is allowed.
func TestPolicyAcrossKills(t *testing.T) {
	t.Parallel()
	m := newMachine(t, *seed, false)
	m.declare("db.yaml", dbPolicy)
	m.readManifests()

	pods := map[string]member{}
	for _, name := range []string{"db", "web", "other"} {
		pods[name] = m.member(name)
	}
	w := m.witness(between(pods, [2]string{"other", "db"}, [2]string{"db", "other"}, [2]string{"web", "db"}, [2]string{"db", "web"}))
	tr := &traffic{t: t}
	defer tr.stop()
	for _, pod := range []string{"db", "other"} {
		tr.serve(pods[pod])
	}
	tr.steady(pods["web"], pods["db"])
	tr.spray(pods["other"], pods["db"])
	tr.spray(pods["db"], pods["other"])

	began, served := time.Now(), 0
	for i := range *kills {
		if m.r.IntN(3) == 0 {
			m.declare("noise.yaml", m.noise("db", i))
		}
		time.Sleep(time.Duration(m.r.IntN(300)) * time.Millisecond)
		if m.Serves() {
			served++
		}
		if m.d.Kill(); t.Failed() {
			t.Fatalf("after %d kills", i)
		}
		m.pause()
		m.d = m.Launch(m.flags...)
	}
	m.d.Kill()
	m.restart()
	tr.stop()
	before, after := w.read()
	t.Logf("%d kills in %v, %d of them of a huskd that served: %d denied connections were tried, %d allowed ones opened, and %d requests sent on steady ones",
		*kills, time.Since(began).Round(time.Second), served, tr.sprayed.Load(), tr.opened.Load(), tr.asked.Load())
	for _, way := range slices.Sorted(slices.Values(w.ways)) {
		wanted := before[way]
		if strings.Contains(way, "other") {
			wanted = 0
		}
		t.Logf("%s: %d packets, of which %d passed", way, before[way], after[way])
		if before[way] == 0 || after[way] != wanted {
			t.Errorf("%s: of %d packets %d passed, want %d", way, before[way], after[way], wanted)
		}
	}

	// The witness sees what passes.
	m.declare("db.yaml", "")
	m.declare("noise.yaml", "")
	tr = &traffic{t: t}
	defer tr.stop()
	tr.spray(pods["other"], pods["db"])
	node.Eventually(t, time.Minute, func() string {
		if _, now := w.read(); now["other-db-ip"] == after["other-db-ip"] || now["other-db-ip6"] == after["other-db-ip6"] {
			return "packets that no policy denies any more"
		}
		return ""
	})
	tr.stop()
	m.Must("nft", "delete", "table", "inet", "witness")
	m.checkBystander()
	m.empty()
}

// TestPolicyTakenAway changes a policy so that it no longer allows connections that are open, and
// expects their end, over TCP and UDP.
func TestPolicyTakenAway(t *testing.T) {
	t.Parallel()
	m := newMachine(t, *seed, false)
	m.declare("db.yaml", dbPolicy)
	m.readManifests()
	db, web := m.member("db"), m.member("web")
	tr := &traffic{t: t}
	defer tr.stop()
	tr.serve(db)
	var last [4]atomic.Int64 // when the connections were last answered
	for i, a := range append(db.addresses, db.addresses...) {
		protocol := []string{"tcp", "udp"}[i/len(db.addresses)]
		var c net.Conn
		err := netns.Do(web.netns, func() (err error) {
			c, err = net.DialTimeout(protocol, netip.AddrPortFrom(a, servedPort).String(), answerLimit)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		tr.running.Go(func() {
			for buf := []byte("x"); !tr.stopped.Load(); time.Sleep(time.Millisecond) {
				_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
				_, _ = c.Write(buf)
				if n, err := c.Read(buf); n > 0 && err == nil {
					last[i].Store(time.Now().UnixNano())
				}
			}
		})
	}
	answered := func(since time.Time) (n int) {
		for i := range last {
			if last[i].Load() > since.UnixNano() {
				n++
			}
		}
		return n
	}
	node.Eventually(t, time.Minute, func() string {
		if n := answered(time.Now().Add(-50 * time.Millisecond)); n < len(last) {
			return fmt.Sprintf("%d of %d connections are answered", n, len(last))
		}
		return ""
	})
	m.declare("db.yaml", strings.ReplaceAll(dbPolicy, "app: web", "app: nothing"))
	began := time.Now()
	const still = 2 * time.Second
	node.Eventually(t, time.Minute, func() string {
		if n := answered(time.Now().Add(-still)); n > 0 {
			return fmt.Sprintf("%d connections go on", n)
		}
		return ""
	})
	for i := range last {
		// The promise is a second. This machine may be busy.
		if took := time.Unix(0, last[i].Load()).Sub(began); took > 5*time.Second {
			t.Errorf("connection %d ended %v after its policy", i, took)
		} else {
			t.Logf("connection %d ended after %v", i, took)
		}
	}
	tr.stop()
	m.declare("db.yaml", "")
	m.tableHas("without policies", -1)
	m.checkBystander()
	m.empty()
}
