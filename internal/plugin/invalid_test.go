package plugin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// TestRefuses checks that any mistake in the environment or the configuration gets its code, and
// one line that names it.
func TestRefuses(t *testing.T) {
	l := newLab(t)
	ns := l.namespace("pod")
	file := filepath.Join(l.dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	args := func(change func(*Args)) Args {
		a := l.args(Add, "id", ns)
		change(&a)
		return a
	}
	same := l.args(Add, "id", ns)
	ranges := func(sets ...[]any) map[string]any { return map[string]any{"ranges": sets} }
	subnet := func(s string) any { return map[string]any{"subnet": s} }
	runtime := func(key string, value any) map[string]any {
		return map[string]any{"runtimeConfig": map[string]any{key: value}}
	}
	port := func(host, container any, more ...string) map[string]any {
		m := map[string]any{"hostPort": host, "containerPort": container, "protocol": "tcp"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return runtime("portMappings", []any{m})
	}
	for _, c := range []struct {
		args Args
		conf any // bytes, or changes
		code uint
		says string
	}{
		{args(func(a *Args) { a.Command = "" }), nil, 4, `CNI_COMMAND "" is none of`},
		{args(func(a *Args) { a.Command = "add" }), nil, 4, `CNI_COMMAND "add"`},
		{args(func(a *Args) { a.ContainerID, a.Netns = "", "" }), nil, 4, "ADD needs CNI_CONTAINERID, CNI_NETNS"},
		{args(func(a *Args) { a.Command, a.IfName, a.Netns = Del, "", "" }), nil, 4, "DEL needs CNI_IFNAME"},
		{args(func(a *Args) { a.ContainerID = "../id" }), nil, 4, `CNI_CONTAINERID "../id"`},
		{args(func(a *Args) { a.IfName = "a/b" }), nil, 4, `CNI_IFNAME "a/b"`},
		{args(func(a *Args) { a.IfName = "sixteen-bytes-xx" }), nil, 4, "too long"},
		{args(func(a *Args) { a.IfName = "lo" }), nil, 7, "lo is taken"},
		{args(func(a *Args) { a.Netns = "pod" }), nil, 4, `CNI_NETNS "pod": not an absolute path`},
		{args(func(a *Args) { a.Netns = "/run/netns/never" }), nil, 3, "/run/netns/never is gone"},
		{args(func(a *Args) { a.Netns = file }), nil, 4, "is not a network namespace"},
		{args(func(a *Args) { a.Netns = "/proc/self/ns/net" }), nil, 4, "is the node's own"},
		{args(func(a *Args) { a.Args = "K8S_POD_NAME" }), nil, 4, `"K8S_POD_NAME" is not KEY=VALUE`},
		{args(func(a *Args) { a.Args = "FOO=1;K8S_POD_NAME=x" }), nil, 4, "unknown key FOO"},
		{args(func(a *Args) { a.Args = "IP=nonsense" }), nil, 7, `"nonsense": not an address`},
		{same, []byte(""), 6, "unexpected end"},
		{same, []byte("[]"), 6, "network configuration"},
		{same, []byte(`{"name": "x", "mtu": "1500"}`), 6, "mtu"},
		{same, []byte(`{"cniVersion": "1.0.0"}`), 7, `name ""`},
		{same, map[string]any{"name": "../etc"}, 7, `name "../etc"`},
		{same, map[string]any{"cniVersion": "9.0.0"}, 1, `cniVersion "9.0.0" is not supported`},
		{args(func(a *Args) { a.Command = Check }), map[string]any{"cniVersion": "0.3.1"}, 1, "0.3.1 has no CHECK"},
		{args(func(a *Args) { a.Command = GC }), map[string]any{"cniVersion": "1.0.0"}, 1, "1.0.0 has no GC"},
		{args(func(a *Args) { a.Command = Status }), map[string]any{"cniVersion": "1.0.0"}, 1, "1.0.0 has no STATUS"},
		{same, map[string]any{"masqerade": true}, 2, "unknown key masqerade"},
		{same, map[string]any{"ipam": map[string]any{"type": "host-local"}}, 2, "ipam: husk-cni allocates addresses itself"},
		{same, map[string]any{"mode": "vlan"}, 7, `mode "vlan"`},
		{same, map[string]any{"mode": "ptp", "bridge": "br0"}, 7, "mode ptp has no bridge"},
		{same, map[string]any{"bridge": "a name"}, 7, `bridge "a name"`},
		{same, map[string]any{"bridge": "up0"}, 7, "up0 exists and doesn't belong to this network"},
		{same, map[string]any{"mtu": 1279}, 7, "mtu 1279"},
		{same, map[string]any{"dataDir": "data"}, 7, `dataDir "data"`},
		{same, map[string]any{"dataDir": file}, 5, "not a directory"},
		{same, map[string]any{"dataDir": "/proc/1"}, 5, "/proc/1/pods"},
		{same, map[string]any{"daemon": "husk.sock"}, 7, `daemon "husk.sock"`},
		{same, map[string]any{"ranges": nil}, 7, "no subnet"},
		{same, map[string]any{"ranges": nil, "subnet": "10.244.0.0"}, 7, `subnet "10.244.0.0": not a prefix`},
		{same, map[string]any{"ranges": nil, "subnet": "10.244.0.1/16"}, 7, "write 10.244.0.0/16"},
		{same, map[string]any{"ranges": nil, "subnet": "10.244.0.0/31"}, 7, "prefix length of 8 to 30"},
		{same, map[string]any{"subnet": "10.244.0.0/24"}, 7, "overlap"},
		{same, map[string]any{"subnet": "10.9.0.0/24"}, 7, "of the same family"},
		{same, ranges([]any{}), 7, "empty list"},
		{same, ranges([]any{subnet("10.1.0.0/24"), subnet("fd00::/64")}), 7, "different families"},
		{same, ranges([]any{subnet("10.1.0.0/24"), subnet("10.1.0.0/25")}), 7, "overlap"},
		{same, ranges([]any{map[string]any{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}}), 7, "10.2.0.1"},
		{same, ranges([]any{map[string]any{"subnet": "10.1.0.0/24", "rangeStart": "x"}}), 6, "x"},
		{same, ranges([]any{map[string]any{"subnet": "10.1.0.0/24", "gateway": "10.1.0.254"}}), 2, "the gateway of 10.1.0.0/24 is 10.1.0.1"},
		{same, ranges([]any{subnet("192.0.2.0/25")}), 7, "overlaps address 192.0.2.2/24 of up0"},
		{same, map[string]any{"routes": []any{map[string]any{"dst": "10.0.0.1/8"}}}, 7, "dst 10.0.0.1/8"},
		{same, map[string]any{"routes": []any{map[string]any{"gw": "10.0.0.1"}}}, 7, "routes"},
		{same, map[string]any{"routes": []any{map[string]any{"dst": "10.0.0.0/8", "gw": "10.244.0.9"}}}, 7, "in mode ptp"},
		{same, map[string]any{"routes": []any{map[string]any{"dst": "10.0.0.0/8", "gw": "fd44::1"}}}, 7, "the same family"},
		{same, map[string]any{"prevResult": map[string]any{"ips": []any{map[string]any{"address": "10.0.0.1/8", "interface": 0}}}}, 6, "an interface that isn't listed"},
		{same, map[string]any{"prevResult": []any{}}, 6, "prevResult"},
		{same, map[string]any{"prevResult": map[string]any{"ips": "no"}}, 6, "prevResult"},
		{same, port(65536, 80), 7, "hostPort 65536"},
		{same, port(-1, 80), 7, "hostPort -1"},
		{same, port(80, 0), 7, "containerPort 0"},
		{same, port("80", 80), 6, "hostPort"},
		{same, port(80, 80, "protocol", "icmp"), 7, `protocol "icmp"`},
		{same, port(80, 80, "hostIP", "localhost"), 7, `hostIP "localhost"`},
		{same, port(80, 80, "hostIP", "224.0.0.1"), 7, "multicast"},
		{same, runtime("ips", []string{"10.244.0.1/16"}), 7, "10.244.0.1 is in no range"},
		{same, runtime("ips", []string{"10.244"}), 7, `ips: "10.244"`},
		{same, runtime("ips", []string{"10.244.0.9", "10.244.0.10"}), 7, "same range"},
		{same, runtime("mac", "02:00:00:00:00"), 7, "six hex pairs"},
		{same, runtime("mac", "01:00:00:00:00:01"), 7, "not the address of one interface"},
		{same, runtime("bandwidth", map[string]any{"ingressRate": -1}), 6, "ingressRate"},
	} {
		conf := c.conf
		if changes, ok := c.conf.(map[string]any); ok || c.conf == nil {
			conf = l.with(changes)
		}
		_, err := l.call(c.args, conf)
		if code, msg := refused(t, err); code != c.code || !strings.Contains(msg, c.says) || strings.Contains(msg, "\n") {
			t.Errorf("%v: %d %s\n\twant %d, %q", c.conf, code, msg, c.code, c.says)
		}
		if u := l.usage(); u.Leases != 0 {
			t.Fatalf("%v: %d leases are left", c.conf, u.Leases)
		}
	}
	l.gc(l.conf)
	l.bare()
}

// TestTaken checks that resources of other pods or programs are refused, and that nothing is left
// of the attempt.
func TestTaken(t *testing.T) {
	l := newLab(t)
	ports := map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	one := l.namespace("one")
	l.add("one", one, l.with(map[string]any{"runtimeConfig": ports, "args": map[string]any{"cni": map[string]any{"ips": []string{"10.244.3.3"}}}}))
	two := l.namespace("two")
	l.serve(l.node, ":9090")
	l.ip(two, "link add eth0 type bridge")
	for name, c := range map[string]struct {
		conf map[string]any
		code uint
		says string
	}{
		"port":      {map[string]any{"runtimeConfig": ports}, types.ErrTryAgainLater, "host port 8080/tcp is in use on this node: pod pods/one has it"},
		"listener":  {map[string]any{"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"hostPort": 9090, "containerPort": 80}}}}, types.ErrTryAgainLater, "a process listens on"},
		"address":   {map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.244.3.3/16"}}}, ErrTaken, "address 10.244.3.3 is in use: pod pods/one has it"},
		"interface": {nil, ErrTaken, "the namespace has a link eth0 of its own"},
	} {
		_, err := l.call(l.args(Add, "two", two), l.with(c.conf))
		if code, msg := refused(t, err); code != c.code || !strings.Contains(msg, c.says) {
			t.Errorf("%s: %d %s", name, code, msg)
		}
		if u := l.usage(); u.Leases != 1 {
			t.Errorf("%s: usage %+v", name, u)
		}
	}
	_, err := l.call(l.args(Add, "one", two), l.conf)
	if code, msg := refused(t, err); code != types.ErrInvalidNetworkConfig || !strings.Contains(msg, "detach it first") {
		t.Errorf("the same container in another namespace: %d %s", code, msg)
	}
}

// FuzzConf checks that no configuration or environment crashes the plugin, and that errors are of
// the specification's form.
func FuzzConf(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.1.0","name":"a","subnet":"10.0.0.0/16"}`,
		`{"name":"a","ranges":[[{"subnet":"10.0.0.0/16","rangeStart":"10.0.0.9"}],[{"subnet":"fd00::/64"}]],"runtimeConfig":{"ips":["10.0.0.9/16"],"mac":"02:00:00:00:00:01","portMappings":[{"hostPort":1,"containerPort":2,"hostIP":"::"}]}}`,
		`{"name":"a","cni.dev/valid-attachments":[{}],"prevResult":{"ips":[null]}}`,
	} {
		f.Add(seed, "K8S_POD_NAME=a;IP=10.0.0.3")
	}
	f.Fuzz(func(t *testing.T, conf, env string) {
		for command := range since {
			c, err := parse([]byte(conf), Args{Command: command, ContainerID: "a", Netns: "/n", IfName: "eth0", Args: env})
			if err != nil {
				if code, msg := refused(t, err); code == 0 || msg == "" {
					t.Fatalf("%s: %d %q", command, code, msg)
				}
				continue
			}
			if !strings.HasPrefix(c.network.Dir, c.DataDir+"/") || strings.Contains(c.Name, "/") {
				t.Fatalf("directory %q", c.network.Dir)
			}
			if _, err := previous(c.PrevResult, c.CNIVersion); err != nil {
				refused(t, err)
			}
		}
	})
}

// TestPodName checks that links and leases have the pod's name from CNI_ARGS.
func TestPodName(t *testing.T) {
	c, err := parse([]byte(`{"name":"n","subnet":"10.0.0.0/16"}`), Args{Command: Add, ContainerID: "id", Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u;X=y;MAC=02:00:00:00:00:01;IP=10.0.0.7"})
	must(t, err)
	got, err := json.Marshal(c.attachment)
	must(t, err)
	if want := `{"sandbox":"","pod":{"namespace":"shop","name":"web","uid":"u"},"netns":"","ifName":"","ips":["10.0.0.7"],"mac":"02:00:00:00:00:01"}`; string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
