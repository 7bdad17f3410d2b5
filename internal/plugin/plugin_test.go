package plugin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"go.etcd.io/bbolt"

	"github.com/huskd/husk/internal/network/daemonless"
	"github.com/huskd/husk/internal/pod"
)

// TestEveryVersion runs all operations of one attachment, in each version of the specification.
func TestEveryVersion(t *testing.T) {
	l := newLab(t)
	for _, v := range version.All.SupportedVersions() {
		t.Run(v, func(t *testing.T) {
			conf := l.with(map[string]any{"cniVersion": v})
			id := "c-" + v
			ns := l.namespace(id)
			r := l.add(id, ns, conf)
			if len(r.IPs) != 2 || !l.ping(ns, other4) {
				t.Errorf("addresses %v; the other host must answer", r.IPs)
			}
			if v >= "0.3.0" {
				eth := r.Interfaces[*r.IPs[0].Interface]
				if eth.Name != "eth0" || eth.Sandbox != ns || eth.Mac == "" {
					t.Errorf("interface %+v", eth)
				}
			}
			after := func(command string) {
				out, err := l.call(l.args(command, id, ns), l.with(map[string]any{
					"cniVersion": v, "prevResult": json.RawMessage(l.do(Add, id, ns, conf)), "cni.dev/valid-attachments": []types.GCAttachment{{ContainerID: id, IfName: "eth0"}},
				}))
				allowed, _ := version.GreaterThanOrEqualTo(v, since[command])
				if len(out) > 0 {
					t.Errorf("%s prints %s", command, out)
				}
				switch {
				case allowed && err != nil:
					t.Errorf("%s: %v", command, err)
				case !allowed:
					if code, _ := refused(t, err); code != types.ErrIncompatibleCNIVersion {
						t.Errorf("%s: %v", command, err)
					}
				}
			}
			for _, command := range []string{Check, Status, GC, Check, Del, Del} {
				if command == Del {
					l.do(Del, id, ns, conf)
					continue
				}
				after(command)
			}
			if out := l.ip(ns, "-o link"); strings.Contains(out, "eth0") {
				t.Errorf("after DEL: %s", out)
			}
		})
	}
	if u := l.usage(); u.Leases != 0 || u.Quarantined != 14 {
		t.Errorf("usage %+v", u)
	}
	l.gc(l.conf)
	l.bare()
}

func TestVersion(t *testing.T) {
	out, err := (&Plugin{}).Call(t.Context(), Args{Command: Version}, nil)
	must(t, err)
	info, err := (&version.PluginDecoder{}).Decode(out)
	must(t, err)
	if got := info.SupportedVersions(); !slices.Equal(got, version.All.SupportedVersions()) {
		t.Errorf("versions %v", got)
	}
}

// TestSimpleConf uses the shortest bridge configuration: a bridge and a subnet.
func TestSimpleConf(t *testing.T) {
	l := newLab(t)
	conf := map[string]any{"cniVersion": "0.3.0", "name": "simplecni", "type": Type, "bridge": "simplecni0", "subnet": "10.244.0.0/16", "dataDir": filepath.Join(l.dir, "data")}
	one, two := l.namespace("one"), l.namespace("two")
	a, b := l.add("one", one, conf), l.add("two", two, conf)
	if got := a.IPs[0].Address.String(); got != "10.244.0.2/16" {
		t.Errorf("address %s", got)
	}
	if got := a.IPs[0].Gateway.String(); got != "10.244.0.1" {
		t.Errorf("gateway %s", got)
	}
	if a.Interfaces[0].Name != "simplecni0" {
		t.Errorf("interfaces %v", a.Interfaces)
	}
	if !l.ping(one, ipOf(t, b, false)) || !l.ping(two, other4) || !l.ping(l.node, ipOf(t, a, false)) {
		t.Error("they must reach each other, the node and the other host")
	}
	again := l.add("one", one, conf)
	if ipOf(t, again, false) != ipOf(t, a, false) {
		t.Errorf("the same ADD again gives %s", ipOf(t, again, false))
	}
	l.do(Del, "one", one, conf)
	if c := l.add("three", one, conf); ipOf(t, c, false) == ipOf(t, a, false) {
		t.Errorf("%s is reused at once", ipOf(t, c, false))
	}
	l.gc(l.with(map[string]any{"name": "simplecni", "bridge": "simplecni0", "subnet": "10.244.0.0/16", "ranges": nil}))
	if out := l.ip(l.node, "-o link"); strings.Contains(out, "simplecni0") {
		t.Errorf("after GC of everything: %s", out)
	}
}

func TestCapabilities(t *testing.T) {
	l := newLab(t)
	l.serve(l.other, other4+":7000")
	for _, mode := range []string{"ptp", "bridge"} {
		t.Run(mode, func(t *testing.T) {
			ns := l.namespace("pod-" + mode)
			conf := l.with(map[string]any{"name": "caps-" + mode, "mode": mode, "runtimeConfig": map[string]any{
				"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}, map[string]any{"hostPort": 0, "containerPort": 81}},
				"bandwidth":    map[string]any{"ingressRate": 8_000_000, "egressRate": 4_000_000, "egressBurst": 2_000_000},
				"ips":          []string{"10.245.7.7/24", "fd45::77"},
				"mac":          "02:AA:bb:cc:dd:01",
				"ipRanges":     []any{[]any{map[string]any{"subnet": "10.245.7.0/24", "gateway": "10.245.7.1"}}, []any{map[string]any{"subnet": "fd45::/64"}}},
				"dns":          map[string]any{"servers": []string{"192.0.2.53"}, "searches": []string{"example.org"}},
			}})
			r := l.add("pod", ns, conf)
			if ipOf(t, r, false) != "10.245.7.7" || ipOf(t, r, true) != "fd45::77" {
				t.Errorf("addresses %v", r.IPs)
			}
			link := l.ip(ns, "-o link show eth0")
			if !strings.Contains(link, "02:aa:bb:cc:dd:01") {
				t.Errorf("link %s", link)
			}
			if r.DNS.Nameservers[0] != "192.0.2.53" {
				t.Errorf("dns %+v", r.DNS)
			}
			l.serve(ns, ":80")
			for from, address := range map[string]string{l.other: node4 + ":8080", l.node: "127.0.0.1:8080"} {
				if _, err := l.ask(from, address); err != nil {
					t.Errorf("hostPort at %s: %v", address, err)
				}
			}
			if from, err := l.ask(ns, other4+":7000"); err != nil || !strings.HasPrefix(from, node4+":") {
				t.Errorf("the other host sees %s, %v", from, err)
			}
			out, err := l.run(l.node, "tc", "qdisc")
			must(t, err)
			if !strings.Contains(out, "rate 8Mbit") || !strings.Contains(out, "rate 4Mbit burst 250000b") {
				t.Errorf("disciplines:\n%s", out)
			}
			l.do(Check, "pod", ns, conf)
			l.do(Del, "pod", ns, conf)
			if _, err := l.ask(l.other, node4+":8080"); err == nil {
				t.Error("the hostPort still answers")
			}
			l.gc(conf)
			l.bare()
		})
	}
}

// TestBandwidth measures how long it takes to send more than the burst.
func TestBandwidth(t *testing.T) {
	l := newLab(t)
	ns := l.namespace("pod")
	r := l.add("pod", ns, l.with(map[string]any{"runtimeConfig": map[string]any{"bandwidth": map[string]any{"ingressRate": 4_000_000, "egressRate": 4_000_000}}}))
	for name, c := range map[string]struct{ from, to, at string }{
		"ingress": {l.other, ns, ipOf(t, r, false)},
		"egress":  {ns, l.other, other4},
	} {
		if c.from == l.other {
			l.ip(l.other, "route replace 10.244.0.0/16 via "+node4)
		}
		took := l.transfer(c.from, c.to, c.at, 1_000_000)
		// 8 Mbit at 4 Mbit/s, except for a burst of half a Mbit.
		if took.Seconds() < 1 {
			t.Errorf("%s of 1 MB took %v", name, took)
		}
		t.Logf("%s of 1 MB took %v", name, took)
	}
}

func TestCheckFinds(t *testing.T) {
	l := newLab(t)
	for _, mode := range []string{"ptp", "bridge"} {
		conf := l.with(map[string]any{"name": "check-" + mode, "mode": mode, "runtimeConfig": map[string]any{
			"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
			"bandwidth":    map[string]any{"ingressRate": 8_000_000, "egressRate": 4_000_000},
		}, "ranges": []any{[]any{map[string]any{"subnet": map[string]string{"ptp": "10.246.0.0/16", "bridge": "10.247.0.0/16"}[mode]}}}})
		inPod := map[string]string{
			"address":   "ip addr del ADDR dev eth0",
			"route":     "ip route del default",
			"link":      "ip link del eth0",
			"mtu":       "ip link set eth0 mtu 1400",
			"mac":       "ip link set eth0 address 02:00:00:00:00:09",
			"down":      "ip link set eth0 down",
			"neighbour": "ip neigh flush dev eth0 nud permanent",
		}
		onNode := map[string]string{
			"host mtu":    "ip link set HOST mtu 1400",
			"host down":   "ip link set HOST down",
			"element":     "nft delete element inet TABLE ports4 { tcp . 8080 }",
			"rules":       "nft flush chain inet TABLE postrouting",
			"table":       "nft delete table inet TABLE",
			"rate":        "tc qdisc del dev HOST root",
			"IFB":         "tc filter del dev HOST parent ffff:",
			"forwarding":  "sysctl -w net.ipv4.ip_forward=0",
			"host's link": "ip link del HOST",
		}
		if mode == "ptp" {
			onNode["host route"] = "ip route flush proto 104 dev HOST"
		} else {
			onNode["bridge address"] = "ip addr flush dev BRIDGE"
			onNode["port"] = "ip link set HOST nomaster"
		}
		for where, cases := range map[string]map[string]string{"pod": inPod, "node": onNode} {
			for name, command := range cases {
				t.Run(mode+"/"+name, func(t *testing.T) {
					ns := l.namespace(strings.ReplaceAll(mode+name, " ", ""))
					id := "id"
					r := l.add(id, ns, conf)
					defer l.gc(conf)
					out := l.do(Add, id, ns, conf)
					with := l.with(map[string]any{"name": conf["name"], "mode": mode, "ranges": conf["ranges"], "runtimeConfig": conf["runtimeConfig"], "prevResult": json.RawMessage(out)})
					l.do(Check, id, ns, with)
					host := r.Interfaces[len(r.Interfaces)-2].Name
					table := string(l.network(conf).Instance().Table())
					fields := strings.Fields(strings.NewReplacer("ADDR", r.IPs[0].Address.String(), "HOST", host, "TABLE", table, "BRIDGE", r.Interfaces[0].Name).Replace(command))
					at := l.node
					if where == "pod" {
						at = ns
					}
					if out, err := l.run(at, fields...); err != nil {
						t.Fatalf("%s: %v\n%s", fields, err, out)
					}
					_, err := l.call(l.args(Check, id, ns), with)
					code, msg := refused(t, err)
					if code != ErrDiffers {
						t.Errorf("code %d: %s", code, msg)
					}
					t.Log(msg)
					l.add(id, ns, conf) // the same ADD repairs
				})
			}
		}
	}
}

func TestCheckComparesPrevResult(t *testing.T) {
	l := newLab(t)
	ns := l.namespace("pod")
	r := l.add("pod", ns, l.conf)
	check := func(change func(*current.Result)) error {
		var other current.Result
		text, err := json.Marshal(r)
		must(t, err)
		must(t, json.Unmarshal(text, &other))
		change(&other)
		_, err = l.call(l.args(Check, "pod", ns), l.with(map[string]any{"prevResult": &other}))
		return err
	}
	must(t, check(func(*current.Result) {}))
	for name, change := range map[string]func(*current.Result){
		"address":   func(r *current.Result) { r.IPs[0].Address.IP[15]++ },
		"interface": func(r *current.Result) { r.Interfaces[1].Name = "eth7" },
	} {
		if code, msg := refused(t, check(change)); code != ErrDiffers {
			t.Errorf("%s: %d %s", name, code, msg)
		}
	}
	if code, _ := refused(t, check(func(r *current.Result) { *r.IPs[0].Interface = 7 })); code != types.ErrDecodingFailure {
		t.Errorf("an index out of range: code %d", code)
	}
	_, err := l.call(l.args(Check, "nobody", ns), l.conf)
	if code, _ := refused(t, err); code != types.ErrUnknownContainer {
		t.Errorf("an unknown container: %v", err)
	}
}

// TestChain runs husk-cni after another plugin, to whose result it adds its own.
func TestChain(t *testing.T) {
	l := newLab(t)
	ns := l.namespace("pod")
	prev := map[string]any{
		"cniVersion": "1.1.0",
		"interfaces": []any{map[string]any{"name": "net0", "sandbox": ns}},
		"ips":        []any{map[string]any{"address": "198.51.100.7/24", "interface": 0}},
		"routes":     []any{map[string]any{"dst": "198.51.100.0/24"}},
		"dns":        map[string]any{"nameservers": []string{"198.51.100.53"}},
	}
	r := l.add("pod", ns, l.with(map[string]any{"prevResult": prev, "routes": []any{map[string]any{"dst": "10.244.0.0/16"}}}))
	if len(r.Interfaces) != 3 || r.Interfaces[0].Name != "net0" || len(r.IPs) != 2+1 || *r.IPs[1].Interface != 2 {
		t.Errorf("result %+v", r)
	}
	if len(r.Routes) != 2 || r.DNS.Nameservers[0] != "198.51.100.53" {
		t.Errorf("routes %v, dns %v", r.Routes, r.DNS)
	}
	if out := l.ip(ns, "route"); strings.Contains(out, "default") || !strings.Contains(out, "10.244.0.0/16") {
		t.Errorf("routes in the pod:\n%s", out)
	}
}

func TestStatus(t *testing.T) {
	l := newLab(t)
	conf := l.with(map[string]any{"ranges": nil, "subnet": "10.244.0.0/29"})
	l.do(Status, "", "", conf)
	for i := range 5 {
		l.add(fmt.Sprint("pod", i), l.namespace(fmt.Sprint("pod", i)), conf)
	}
	_, err := l.call(l.args(Status, "", ""), conf)
	if code, msg := refused(t, err); code != types.ErrPluginNotAvailable || !strings.Contains(msg, "no address is left in 10.244.0.0/29") {
		t.Errorf("exhausted: %d %s", code, msg)
	}
	_, err = l.call(l.args(Add, "more", l.namespace("more")), conf)
	if code, msg := refused(t, err); code != types.ErrTryAgainLater {
		t.Errorf("ADD when exhausted: %d %s", code, msg)
	}
	l.gc(conf, types.GCAttachment{ContainerID: "pod0", IfName: "eth0"})
	l.plugin.Quarantine = -1
	conf["subnet"] = "10.244.0.0/28" // the other addresses are in quarantine
	l.do(Status, "", "", conf)
	l.add("again", l.namespace("again"), conf)
	l.ip(l.node, "route flush proto 104 type unreachable")
	_, err = l.call(l.args(Status, "", ""), conf)
	if code, msg := refused(t, err); code != types.ErrLimitedConnectivity {
		t.Errorf("a route is missing: %d %s", code, msg)
	}
}

// TestDelAndGCWithoutNamespace checks that DEL and GC work without the namespace, with a
// configuration that is invalid except for its name, and if nothing was added.
func TestDelAndGCWithoutNamespace(t *testing.T) {
	l := newLab(t)
	odd := l.with(map[string]any{"ranges": nil, "subnet": "nonsense", "mode": "odd", "unknown": true})
	l.do(Del, "nobody", "", odd)
	l.gc(odd)
	if _, err := os.Stat(filepath.Join(l.dir, "data")); !os.IsNotExist(err) {
		t.Errorf("DEL of nothing made something: %v", err)
	}
	for _, ns := range []string{"", "/run/netns/gone"} {
		l.add("pod", l.namespace("pod"), l.conf)
		l.do(Del, "pod", ns, odd)
		l.do(Del, "pod", ns, odd)
		if u := l.usage(); u.Leases != 0 {
			t.Errorf("usage %+v", u)
		}
	}
	l.add("kept", l.namespace("kept"), l.conf)
	l.add("lost", l.namespace("lost"), l.conf)
	kept := types.GCAttachment{ContainerID: "kept", IfName: "eth0"}
	l.gc(l.conf, kept, types.GCAttachment{ContainerID: "lost", IfName: "eth1"})
	l.gc(l.conf, kept)
	l.do(Check, "kept", filepath.Join(l.dir, "kept"), l.conf)
	if u := l.usage(); u.Leases != 1 {
		t.Errorf("usage %+v", u)
	}
	_, err := l.call(l.args(GC, "", ""), l.conf)
	if code, _ := refused(t, err); code != types.ErrInvalidNetworkConfig {
		t.Errorf("GC without a list: %v", err)
	}
	l.gc(l.conf)
	l.bare()
}

// TestTwoInterfaces attaches several interfaces of one network, and of several networks, to one
// container.
func TestTwoInterfaces(t *testing.T) {
	l := newLab(t)
	ns := l.namespace("pod")
	second := l.with(map[string]any{"name": "second", "ranges": []any{[]any{map[string]any{"subnet": "10.248.0.0/24"}}}, "routes": []any{map[string]any{"dst": "10.248.0.0/24"}}})
	l.add("pod", ns, l.conf)
	a := l.args(Add, "pod", ns)
	a.IfName = "eth1"
	if _, err := l.call(a, second); err != nil {
		t.Fatal(err)
	}
	more := l.with(map[string]any{"routes": []any{map[string]any{"dst": "198.18.0.0/15"}}})
	a.IfName = "eth2"
	if _, err := l.call(a, more); err != nil {
		t.Fatal(err)
	}
	l.ip(l.other, "addr add 198.18.0.1/32 dev lo")
	if !l.ping(ns, other4) || !l.ping(ns, "10.248.0.1") || !l.ping(ns, "198.18.0.1") {
		t.Error("one of the networks doesn't work")
	}
	for _, name := range []string{"eth2", "eth1"} {
		a.Command, a.IfName = Del, name
		if _, err := l.call(a, map[bool]map[string]any{true: more, false: second}[name == "eth2"]); err != nil {
			t.Fatal(err)
		}
	}
	l.do(Check, "pod", ns, l.conf)
	l.gc(second)
	l.gc(l.conf)
	l.bare()
}

// TestLinger checks that with Linger, DEL only ends the traffic, and the rest happens together in
// the background. An ADD in between waits only for its own container.
func TestLinger(t *testing.T) {
	l := newLab(t)
	l.plugin.Linger = 30 * time.Millisecond
	var pods []string
	for i := range 4 {
		pods = append(pods, l.namespace(fmt.Sprint("pod", i)))
		l.add(fmt.Sprint("pod", i), pods[i], l.conf)
	}
	start := time.Now()
	l.do(Del, "pod0", pods[0], l.conf)
	if l.ping(pods[0], other4) {
		t.Error("the pod still reaches others after DEL")
	}
	l.do(Del, "pod1", pods[1], l.conf)
	l.do(Del, "pod1", pods[1], l.conf)
	l.do(Del, "pod2", pods[2], l.conf)
	again := l.add("pod1", pods[1], l.conf) // while its former link may still exist
	if !l.ping(pods[1], other4) {
		t.Error("the new attachment doesn't work")
	}
	l.plugin.Close()
	t.Logf("after %v", time.Since(start))
	if u := l.usage(); u.Leases != 2 || u.Quarantined != 6 {
		t.Errorf("usage %+v", u)
	}
	l.do(Check, "pod1", pods[1], l.conf)
	if ipOf(t, again, false) != "10.244.0.6" {
		t.Errorf("address %v", again.IPs)
	}
	l.do(Del, "pod3", pods[3], l.conf)
	l.gc(l.conf) // doesn't wait for the background work
	l.plugin.Close()
	if u := l.usage(); u.Leases != 0 {
		t.Errorf("usage %+v", u)
	}
	l.bare()
}

// TestPortIsFreeAfterDel checks that a port is available as soon as DEL has ended, and that the
// background work of its former owner doesn't affect the next one.
func TestPortIsFreeAfterDel(t *testing.T) {
	l := newLab(t)
	l.plugin.Linger = 300 * time.Millisecond
	conf := l.with(map[string]any{"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}})
	for i := range 3 {
		id := fmt.Sprint("pod", i)
		ns := l.namespace(id)
		l.add(id, ns, conf)
		l.serve(ns, ":80")
		for range 2 {
			if _, err := l.ask(l.other, node4+":8080"); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			l.plugin.Close() // wait for the background work
		}
		l.do(Check, id, ns, conf)
		l.do(Del, id, ns, conf)
	}
	l.plugin.Close()
	l.gc(l.conf)
	l.bare()
}

// TestRepairsBase checks that the next ADD recreates the node's part of the network for all pods.
// nftables.service removes all tables when it starts, and people delete bridges.
func TestRepairsBase(t *testing.T) {
	l := newLab(t)
	for _, mode := range []string{"ptp", "bridge"} {
		one, two := l.namespace("one"+mode), l.namespace("two"+mode)
		conf := l.with(map[string]any{"mode": mode})
		ports := l.with(map[string]any{"mode": mode, "runtimeConfig": map[string]any{
			"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		}})
		l.add("one", one, ports)
		l.serve(one, ":80")
		for _, damage := range []string{"nft flush ruleset", "ip link del " + l.network(conf).Instance().Bridge()} {
			if strings.HasPrefix(damage, "ip") && mode != "bridge" {
				continue
			}
			if out, err := l.run(l.node, strings.Fields(damage)...); err != nil {
				t.Fatalf("%s: %v: %s", damage, err, out)
			}
			_, err := l.call(l.args(Status, "", ""), conf)
			if code, msg := refused(t, err); code != types.ErrLimitedConnectivity {
				t.Errorf("%s: STATUS %d %s", damage, code, msg)
			}
			l.add("two", two, conf)
			l.add("one", one, ports) // its link was a port of the bridge
			l.do(Status, "", "", conf)
			if _, err := l.ask(l.other, node4+":8080"); err != nil {
				t.Errorf("%s, %s: hostPort: %v", mode, damage, err)
			}
			if !l.ping(two, other4) {
				t.Errorf("%s, %s: the new pod has no network", mode, damage)
			}
			l.do(Del, "two", two, conf)
		}
		l.gc(conf)
		l.bare()
	}
}

// TestUnreadableLease checks that an attachment whose lease is damaged keeps working, and can be
// detached with everything that it has in the kernel.
func TestUnreadableLease(t *testing.T) {
	l := newLab(t)
	for _, id := range []string{"bad", "good"} {
		port := map[string]any{"hostPort": 8080 + len(id), "containerPort": 80, "protocol": "tcp", "hostIP": node4}
		l.add(id, l.namespace(id), l.with(map[string]any{"runtimeConfig": map[string]any{"portMappings": []any{port}}}))
	}
	bad := filepath.Join(l.dir, "bad")
	files, err := filepath.Glob(filepath.Join(l.dir, "data/pods/leases-*.db"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	db, err := bbolt.Open(files[0], 0, nil)
	must(t, err)
	must(t, db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("leases")).Put([]byte(daemonless.SandboxOf("bad", "eth0")), []byte(`{"attachment":`))
	}))
	must(t, db.Close())
	for command, want := range map[string]uint{Check: ErrDiffers, Add: types.ErrInvalidNetworkConfig} {
		_, err := l.call(l.args(command, "bad", bad), l.conf)
		if code, text := refused(t, err); code != want || !strings.Contains(text, "its lease was unreadable: detach it") {
			t.Errorf("%s: %d %s", command, code, text)
		}
	}
	live := []types.GCAttachment{{ContainerID: "bad", IfName: "eth0"}, {ContainerID: "good", IfName: "eth0"}}
	l.gc(l.conf, live...)
	for _, id := range []string{"bad", "good"} {
		if !l.ping(filepath.Join(l.dir, id), other4) {
			t.Errorf("%s doesn't reach the other host any more", id)
		}
	}
	l.do(Del, "bad", bad, l.conf)
	if rules, err := l.run(l.node, "nft", "list", "ruleset"); err != nil || strings.Contains(rules, "8083") || !strings.Contains(rules, "8084") {
		t.Errorf("%v: after DEL the rules are\n%s", err, rules)
	}
	if u := l.usage(); u.Leases != 1 || u.Quarantined != 2 {
		t.Errorf("usage %+v", u)
	}
	l.do(Check, "good", filepath.Join(l.dir, "good"), l.conf)
	l.add("bad", bad, l.conf)
	l.do(Check, "bad", bad, l.conf)
	l.do(Del, "bad", bad, l.conf)
	l.do(Del, "good", "", l.conf)
	l.gc(l.conf)
	l.bare()
}

// TestRangesChange checks that attached pods keep their addresses and their network when the
// configuration changes.
func TestRangesChange(t *testing.T) {
	l := newLab(t)
	old, fresh := l.namespace("old"), l.namespace("fresh")
	before := l.with(map[string]any{"ranges": nil, "subnet": "10.244.0.0/24"})
	after := l.with(map[string]any{"ranges": nil, "subnet": "10.245.0.0/24", "mode": "bridge"})
	a := l.add("old", old, before)
	b := l.add("fresh", fresh, after)
	if !l.ping(old, ipOf(t, b, false)) || !l.ping(fresh, ipOf(t, a, false)) || !l.ping(old, other4) || !l.ping(fresh, other4) {
		t.Error("they must reach each other and the other host")
	}
	if again := l.add("old", old, after); ipOf(t, again, false) != ipOf(t, a, false) {
		t.Errorf("its addresses changed to %v", again.IPs)
	}
	for id, ns := range map[string]string{"old": old, "fresh": fresh} {
		l.do(Check, id, ns, after)
		l.do(Del, id, ns, after)
	}
	l.gc(after)
	l.bare()
}

// TestClash checks two networks whose directories have the same four digits, by which their objects
// in the kernel are named. The second is refused, and none of its calls affects the first.
func TestClash(t *testing.T) {
	l := newLab(t)
	names := map[string]string{}
	var first, second string
	for i := 0; second == ""; i++ {
		name := fmt.Sprint("net", i)
		short := string(pod.InstanceOf(filepath.Join(l.dir, "data", name)))
		if other, ok := names[short]; ok {
			first, second = other, name
		}
		names[short] = name
	}
	one := l.with(map[string]any{"name": first})
	two := l.with(map[string]any{"name": second, "ranges": []any{[]any{map[string]any{"subnet": "10.249.0.0/16"}}}})
	ns := l.namespace("pod")
	l.add("pod", ns, one)
	_, err := l.call(l.args(Add, "other", l.namespace("other pod")), two)
	if code, msg := refused(t, err); code != types.ErrInvalidNetworkConfig || !strings.Contains(msg, "belongs to another network") {
		t.Errorf("ADD: %d %s", code, msg)
	}
	l.do(Del, "other", "", two)
	if _, err := l.call(l.args(GC, "", ""), l.with(map[string]any{"name": second, "cni.dev/valid-attachments": []any{}})); err == nil {
		t.Error("GC of the second network succeeds")
	}
	l.do(Check, "pod", ns, one)
	if !l.ping(ns, other4) {
		t.Error("the first network doesn't work any more")
	}
	l.gc(one)
	l.add("other", ns, two)
	l.gc(two)
	l.bare()
}
