package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/huskd/husk/internal/network/daemonless"
	"github.com/huskd/husk/test/node"
)

// TestAsCnitoolDoes runs husk-cni through libcni, as cnitool, containerd and CRI-O do, with every
// operation of each version.
func TestAsCnitoolDoes(t *testing.T) {
	h := newHost(t)
	ctx := t.Context()
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			list := h.list(v, "net-"+v, dual("ranges", nil, "subnet", fmt.Sprintf("10.24%s.%s.0/24", v[:1], v[2:3])))
			caps, err := h.cni.ValidateNetworkList(ctx, list)
			must(t, err)
			if !slices.Contains(caps, "portMappings") {
				t.Errorf("capabilities %v", caps)
			}
			rt := h.pod("pod-" + v)
			rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web"}}
			rt.CapabilityArgs = map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
			r := h.add(list, rt)
			if len(r.IPs) != 1 {
				t.Errorf("result %v", r)
			}
			h.reaches(rt.ContainerID, node.Other4)
			h.serve(rt.ContainerID, 80)
			if got, err := h.ask(h.OtherNet(), node.Address4+":8080"); got != rt.ContainerID {
				t.Errorf("hostPort answers %q, %v", got, err)
			}
			if v >= "0.4.0" {
				must(t, h.cni.CheckNetworkList(ctx, list, rt))
			}
			if v >= "1.1.0" {
				must(t, h.cni.GetStatusNetworkList(ctx, list))
				must(t, h.cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: rt.ContainerID, IfName: "eth0"}}}))
				must(t, h.cni.CheckNetworkList(ctx, list, rt))
			}
			must(t, h.cni.DelNetworkList(ctx, list, rt))
			must(t, h.cni.DelNetworkList(ctx, list, rt))
			if _, err := h.ask(h.OtherNet(), node.Address4+":8080"); err == nil {
				t.Error("the hostPort still answers")
			}
			h.gone(list)
		})
	}
}

// TestDaemonDoesIt: with huskd's socket in its configuration, the plugin asks huskd to do the work,
// and returns "try again" while huskd is down.
func TestDaemonDoesIt(t *testing.T) {
	h := newHost(t)
	d := h.Huskd()
	ctx := t.Context()
	list := h.list("1.1.0", "pods", dual("daemon", filepath.Join(h.State, "husk.sock")))
	rt := h.pod("pod")
	h.add(list, rt)
	h.reaches("pod", node.Other4)
	h.reaches("pod", node.Other6)
	must(t, h.cni.CheckNetworkList(ctx, list, rt))
	must(t, h.cni.GetStatusNetworkList(ctx, list))
	d.Stop()
	if err := h.cni.DelNetworkList(ctx, list, rt); codeOf(err) != types.ErrTryAgainLater {
		t.Errorf("DEL with huskd away: %v", err)
	}
	if err := h.cni.GetStatusNetworkList(ctx, list); codeOf(err) != types.ErrPluginNotAvailable {
		t.Errorf("STATUS with huskd away: %v", err)
	}
	h.reaches("pod", node.Other4)
	// The store is the same: without huskd, the plugin works alone.
	alone := h.list("1.1.0", "pods", dual())
	must(t, h.cni.CheckNetworkList(ctx, alone, rt))
	d = h.Huskd()
	must(t, h.cni.DelNetworkList(ctx, list, rt))
	h.gone(list)
	d.Stop()
	// Each of them leaves forwarding on while the other is there.
	h.Run("sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
}

// TestChainsWithReferencePlugins: husk-cni before and after Debian's reference plugins.
func TestChainsWithReferencePlugins(t *testing.T) {
	need(t, filepath.Join(debian, "portmap"), "iptables")
	h := newHost(t)
	ctx := t.Context()
	port := map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	for name, plugins := range map[string][]map[string]any{
		"tuning": {dual(), {"type": "tuning", "sysctl": map[string]string{"net.ipv4.conf.eth0.log_martians": "1"}}},
		"portmap": {
			dual("capabilities", map[string]bool{}),
			{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}, "snat": true},
		},
		"bandwidth": {dual(), {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000, "egressRate": 8_000_000, "egressBurst": 8_000_000}},
		"firewall":  {dual(), {"type": "firewall", "backend": "iptables"}},
		"loopback":  {{"type": "loopback"}, dual()},
		"all": {
			{"type": "loopback"}, dual(), {"type": "tuning", "sysctl": map[string]string{"net.ipv4.conf.eth0.log_martians": "1"}},
			{"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000},
		},
	} {
		t.Run(name, func(t *testing.T) {
			list := h.list("1.0.0", "chain-"+name, plugins...)
			rt := h.pod("pod-" + name)
			rt.CapabilityArgs = port
			r := h.add(list, rt)
			var eth string
			for _, ip := range r.IPs {
				if i := r.Interfaces[*ip.Interface]; i.Name == "eth0" && i.Sandbox == rt.NetNS && ip.Address.IP.To4() != nil {
					eth = ip.Address.IP.String()
				}
			}
			if eth == "" {
				t.Fatalf("result %v", r)
			}
			h.reaches(rt.ContainerID, node.Other4)
			h.serve(rt.ContainerID, 80)
			if got, err := h.ask(h.OtherNet(), node.Address4+":8080"); got != rt.ContainerID {
				t.Errorf("hostPort answers %q, %v", got, err)
			}
			if name != "portmap" { // its CHECK looks for IPv6 rules that its ADD doesn't create
				must(t, h.cni.CheckNetworkList(ctx, list, rt))
			}
			must(t, h.cni.DelNetworkList(ctx, list, rt))
			i := slices.IndexFunc(plugins, func(p map[string]any) bool { return p["type"] == "husk-cni" })
			h.gone(h.list("1.1.0", list.Name, plugins[i]))
		})
	}
	// The iptables chains and tables that the reference plugins leave are theirs.
	for _, family := range []string{"ip", "ip6"} {
		for _, table := range []string{"nat", "filter", "mangle", "raw"} {
			h.Run("nft", "delete", "table", family, table)
		}
	}
	h.Run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0")
}

// TestStorm: sixteen runtimes at once, whose plugins are killed at random moments. The runtimes do
// what the specification asks: they delete what they added or failed to add, and finally run GC
// with what is alive. Nothing is left.
func TestStorm(t *testing.T) {
	h := newHost(t)
	const runtimes = 16
	rounds := 63 // 16 * 63 are a thousand attachments
	if testing.Short() {
		rounds = 8
	}
	list := h.list("1.1.0", "storm", dual())
	var mu sync.Mutex
	var valid []types.GCAttachment
	held := map[string]string{}
	kills := 0
	var pods []*libcni.RuntimeConf
	for i := range runtimes {
		pods = append(pods, h.pod(fmt.Sprint("pod", i)))
	}
	var g sync.WaitGroup
	for i := range runtimes {
		g.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			// Some kills hit a plugin halfway, and its runtime isn't notified.
			killable := func() (context.Context, context.CancelFunc) {
				if random.IntN(3) > 0 {
					return context.WithTimeout(t.Context(), 2*time.Minute)
				}
				mu.Lock()
				kills++
				mu.Unlock()
				return context.WithTimeout(t.Context(), time.Duration(random.IntN(60))*time.Millisecond)
			}
			for round := range rounds {
				rt := *pods[i]
				rt.ContainerID = fmt.Sprintf("c-%d-%d", i, round)
				rt.CapabilityArgs = map[string]any{"portMappings": []any{map[string]any{"hostPort": 20000 + i, "containerPort": 80, "protocol": "tcp"}}}
				if random.IntN(2) == 0 {
					rt.CapabilityArgs["bandwidth"] = map[string]any{"ingressRate": 1_000_000, "egressRate": 1_000_000}
				}
				ctx, cancel := killable()
				got, err := h.cni.AddNetworkList(ctx, list, &rt)
				killed := ctx.Err() != nil
				cancel()
				if err == nil {
					var r struct {
						IPs []struct{ Address string } `json:"ips"`
					}
					text, _ := json.Marshal(got)
					_ = json.Unmarshal(text, &r)
					mu.Lock()
					for _, ip := range r.IPs {
						if other, twice := held[ip.Address]; twice {
							t.Errorf("%s is given to %s and %s", ip.Address, other, rt.ContainerID)
						}
						held[ip.Address] = rt.ContainerID
					}
					mu.Unlock()
				} else if !killed {
					t.Errorf("ADD %s: %v", rt.ContainerID, err)
				}
				if err == nil && round == rounds-1 && i%2 == 0 {
					mu.Lock()
					valid = append(valid, types.GCAttachment{ContainerID: rt.ContainerID, IfName: "eth0"})
					mu.Unlock()
					return
				}
				// A runtime retries DEL until it succeeds.
				for {
					ctx, cancel := killable()
					err := h.cni.DelNetworkList(ctx, list, &rt)
					killed := ctx.Err() != nil
					cancel()
					if err == nil {
						break
					}
					if !killed {
						t.Errorf("DEL %s: %v", rt.ContainerID, err)
						return
					}
				}
				mu.Lock()
				for a, owner := range held {
					if owner == rt.ContainerID {
						delete(held, a)
					}
				}
				mu.Unlock()
			}
		})
	}
	g.Wait()
	t.Logf("%d kills, %d attached at the end", kills, len(valid))
	for _, a := range valid {
		i := strings.Split(a.ContainerID, "-")[1]
		h.reaches("pod"+i, node.Other4)
	}
	must(t, h.cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: valid}))
	if u := h.usage("storm"); u.Leases != len(valid) {
		t.Errorf("usage %+v, %d are attached", u, len(valid))
	}
	for _, a := range valid {
		i := strings.Split(a.ContainerID, "-")[1]
		h.reaches("pod"+i, node.Other4)
	}
	h.gone(list)
	if u := h.usage("storm"); u.Leases != 0 {
		t.Errorf("usage %+v", u)
	}
}

// usage returns what is recorded of a network. The node has a boot ID of its own, which is in the
// database's name.
func (h *host) usage(network string) daemonless.Usage {
	h.t.Helper()
	boot, err := os.ReadFile(h.Path("/proc/sys/kernel/random/boot_id"))
	must(h.t, err)
	n, err := daemonless.New(daemonless.Config{Dir: filepath.Join(h.data, network), Boot: strings.TrimSpace(string(boot))})
	must(h.t, err)
	u, err := n.Usage(h.t.Context())
	must(h.t, err)
	return u
}

// TestCrashEverywhere kills the plugin between any two effects, together with its runtime: only the
// list of valid attachments says what to clean up.
func TestCrashEverywhere(t *testing.T) {
	h := newHost(t)
	list := h.list("1.1.0", "crash", dual())
	rt := h.pod("pod")
	rt.CapabilityArgs = map[string]any{
		"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 1_000_000, "egressRate": 1_000_000},
	}
	ctx := t.Context()
	trace := filepath.Join(h.Dir, "trace")
	t.Setenv("HUSK_CRASHPOINT_TRACE", trace)
	h.add(list, rt)
	must(t, h.cni.DelNetworkList(ctx, list, rt))
	text, err := os.ReadFile(trace)
	must(t, err)
	must(t, os.Remove(trace))
	points := strings.Fields(string(text))
	slices.Sort(points)
	points = slices.Compact(points)
	if len(points) < 8 {
		t.Fatalf("places %v", points)
	}
	ask := func() error {
		_, err := h.ask(h.OtherNet(), node.Address4+":8080")
		return err
	}
	h.serve("pod", 80)
	forwarding := func() string { return h.Must("sysctl", "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding") }
	for _, point := range points {
		for name, then := range map[string]func(){
			"DEL": func() { must(t, h.cni.DelNetworkList(ctx, list, rt)) },
			"GC":  func() { must(t, h.cni.GCNetworkList(ctx, list, &libcni.GCArgs{})) },
			"ADD": func() {
				h.add(list, rt)
				h.reaches("pod", node.Other4)
				must(t, ask())
				must(t, h.cni.CheckNetworkList(ctx, list, rt))
				must(t, h.cni.DelNetworkList(ctx, list, rt))
			},
		} {
			t.Run(point+"/"+name, func(t *testing.T) {
				// Removing the last attachment removes the node's own part too.
				must(t, h.cni.GCNetworkList(ctx, list, &libcni.GCArgs{}))
				before := forwarding()
				os.Setenv("HUSK_CRASHPOINT", point)
				_, err := h.cni.AddNetworkList(ctx, list, rt)
				if err == nil {
					err = h.cni.DelNetworkList(ctx, list, rt)
				}
				os.Unsetenv("HUSK_CRASHPOINT")
				if err == nil {
					t.Fatal("it didn't crash")
				}
				then()
				if u := h.usage("crash"); u.Leases != 0 {
					t.Errorf("usage %+v", u)
				}
				if ask() == nil {
					t.Error("the hostPort answers")
				}
				if links := h.Must("ip", "-o", "link"); strings.Contains(links, ": hk") || strings.Contains(links, ": hf") {
					t.Errorf("links:\n%s", links)
				}
				must(t, h.cni.GCNetworkList(ctx, list, &libcni.GCArgs{}))
				if now := forwarding(); now != before {
					t.Errorf("forwarding was %q and is %q", before, now)
				}
			})
		}
	}
	h.gone(list)
}

// TestReboot: after a reboot nothing is left, and DEL of an earlier attachment succeeds.
func TestReboot(t *testing.T) {
	h := newHost(t)
	list := h.list("1.1.0", "pods", dual())
	rt := &libcni.RuntimeConf{ContainerID: "before", NetNS: "/run/netns/before", IfName: "eth0"}
	h.Must("ip", "netns", "add", "before")
	h.add(list, rt)
	h.Reboot()
	if u := h.usage("pods"); u.Leases != 0 {
		t.Errorf("usage %+v", u)
	}
	rt.NetNS = ""
	must(t, h.cni.DelNetworkList(t.Context(), list, rt))
	must(t, h.cni.GetStatusNetworkList(t.Context(), list))
	h.add(list, h.pod("after"))
	h.reaches("after", node.Other4)
	h.gone(list)
	files, err := filepath.Glob(filepath.Join(h.data, "pods", "*.db"))
	if err != nil || len(files) != 1 {
		t.Errorf("databases %v, %v", files, err)
	}
}
