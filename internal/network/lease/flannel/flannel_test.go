package flannel_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/huskd/husk/internal/network/lease/flannel"
	"github.com/huskd/husk/internal/network/peer"
)

func parse(t *testing.T, config string) flannel.Network {
	t.Helper()
	n, err := flannel.ParseNetwork([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestParseNetwork(t *testing.T) {
	for config, want := range map[string]string{
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`: "vxlan VNI 1 port 8472 direct false: 10.5.0.0/16 /24 10.5.1.0 10.5.255.0",
		`{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0","Backend":{"Type":"VXLAN","type":"vxlan","VNI":7,"Port":99}}`: "vxlan VNI 7 port 99 direct false: 10.0.0.0/8 /20 10.10.0.0 10.99.0.0",
		`{"Network":"10.5.0.0/24","Backend":{"Type":"host-gw"}}`:                                                                     "host-gw VNI 0 port 0 direct false: 10.5.0.0/24 /26 10.5.0.64 10.5.0.192",
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48","Backend":{"Type":"vxlan","DirectRouting":true}}`:           "vxlan VNI 1 port 8472 direct true: fc00::/48 /64 fc00:0:0:1:: fc00:0:0:ffff::",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"2001:cafe:42::/96","Backend":{"Type":"wireguard","Mode":"auto"}}`: "wireguard VNI 0 port 51820 direct false: 10.5.0.0/16 /24 10.5.1.0 10.5.255.0, 2001:cafe:42::/96 /98 2001:cafe:42::4000:0 2001:cafe:42::c000:0",
	} {
		n := parse(t, config)
		got := fmt.Sprintf("%s VNI %d port %d direct %v:", n.Backend, n.VNI, n.Port, n.DirectRouting)
		for i, r := range n.Ranges {
			got += strings.Repeat(",", i) + fmt.Sprintf(" %v /%d %v %v", r.Network, r.Length, r.Min, r.Max)
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", config, got, want)
		}
	}
}

func TestParseNetworkRefuses(t *testing.T) {
	for config, want := range map[string]string{
		`{`: "unexpected end", `{}`: "udp",
		`{"Backend":{"Type":"vxlan"}}`:                                                                                      `Network: "" is not a subnet of IPv4`,
		`{"Network":"fc00::/48","Backend":{"Type":"vxlan"}}`:                                                                "not a subnet of IPv4",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"tencent-vpc"}}`:                                                        `no backend "tencent-vpc"`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":16777216}}`:                                               "VNI 16777216",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":true}}`:                                                   "group based policy",
		`{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","PSK":"x"}}`:                                                "preshared",
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48","Backend":{"Type":"wireguard"}}`:              "Mode to auto",
		`{"Network":"10.5.0.0/29","Backend":{"Type":"vxlan"}}`:                                                              "no four subnets of length 31",
		`{"Network":"10.5.0.0/16","SubnetLen":17,"Backend":{"Type":"vxlan"}}`:                                               "no four subnets",
		`{"Network":"10.5.0.0/16","SubnetLen":-1,"Backend":{"Type":"vxlan"}}`:                                               "no four subnets",
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.0.9","Backend":{"Type":"vxlan"}}`:                                       `"10.5.0.9" is not the address of a subnet`,
		`{"Network":"10.5.0.0/16","SubnetMax":"10.6.0.0","Backend":{"Type":"vxlan"}}`:                                       `"10.6.0.0" is not`,
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.9.0","SubnetMax":"10.5.8.0","Backend":{"Type":"vxlan"}}`:                "comes before",
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/16","IPv6SubnetLen":120,"Backend":{"Type":"host-gw"}}`: "more than 2^32",
		`{"EnableIPv4":false,"Backend":{"Type":"host-gw"}}`:                                                                 "neither",
		`{"x":"` + strings.Repeat("x", 17000) + `"}`:                                                                        "at most 16384",
	} {
		if _, err := flannel.ParseNetwork([]byte(config)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.100s: got %v, want one line with %q", config, err, want)
		}
	}
}

func TestRange(t *testing.T) {
	for _, network := range []string{
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.16.0","SubnetMax":"10.5.18.0","Backend":{"Type":"vxlan"}}`,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00:1::/48","IPv6SubnetMax":"fc00:1:0:3::","Backend":{"Type":"vxlan"}}`,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00:1::/122","Backend":{"Type":"vxlan"}}`,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00:1::/62","IPv6SubnetLen":66,"IPv6SubnetMin":"fc00:1:0:3:4000::","IPv6SubnetMax":"fc00:1:0:3:c000::","Backend":{"Type":"vxlan"}}`,
	} {
		r := parse(t, network).Ranges[0]
		if r.Size() != 3 || r.Subnet(0).Addr() != r.Min || r.Subnet(2).Addr() != r.Max || r.Holds(netip.PrefixFrom(r.Min, r.Length+1)) || r.Holds(r.Network) || r.Holds(r.Subnet(3)) {
			t.Errorf("%s: %d subnets, %v to %v", network, r.Size(), r.Subnet(0), r.Subnet(2))
		}
		for i := range r.Size() {
			if s := r.Subnet(i); !r.Holds(s) || s != s.Masked() {
				t.Errorf("%s: %v isn't a subnet of it", network, s)
			}
		}
	}
}

// What flanneld 0.28.9 wrote, and one value of its documentation (reservations.md).
var recorded = []struct{ config, key, value, record string }{
	{`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`, "10.5.52.0-24", `{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`,
		`{"v":1,"node":"192.168.64.3","addresses":["192.168.64.3"],"blocks":["10.5.52.0/24"],"vxlan":{"vni":1,"port":8472,"mac":"c6:d2:32:6f:8f:44"},"tunneled":true}`},
	{`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48","Backend":{"Type":"vxlan","DirectRouting":true}}`, "10.5.34.0-24&fc00:0:0:1::-64",
		`{"PublicIP":"192.0.2.7","PublicIPv6":"2001:db8::7","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`,
		`{"v":1,"node":"192.0.2.7","addresses":["192.0.2.7","2001:db8::7"],"blocks":["10.5.34.0/24","fc00:0:0:1::/64"],"vxlan":{"vni":1,"port":8472,"mac":"c6:d2:32:6f:8f:44","mac6":"c6:d2:32:6f:8f:44"}}`},
	{`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`, "10.5.1.0-24", `{"PublicIP":"192.0.2.7","PublicIPv6":null,"BackendType":"host-gw"}`,
		`{"v":1,"node":"192.0.2.7","addresses":["192.0.2.7"],"blocks":["10.5.1.0/24"]}`},
	{`{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}`, "10.5.1.0-24",
		`{"PublicIP":"192.0.2.7","PublicIPv6":null,"BackendType":"wireguard","BackendData":{"PublicKey":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","Port":51820}}`,
		`{"v":1,"node":"192.0.2.7","addresses":["192.0.2.7"],"blocks":["10.5.1.0/24"],"wireguard":[{"key":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","port":51820}],"encrypted":true}`},
	{`{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}`, "10.5.1.0-24", `{"PublicIP":"192.0.2.7","PublicIPv6":null,"BackendType":"ipip"}`,
		`{"v":1,"node":"192.0.2.7","addresses":["192.0.2.7"],"blocks":["10.5.1.0/24"],"ipip":true,"tunneled":true}`},
}

func TestRecorded(t *testing.T) {
	for _, c := range recorded {
		n := parse(t, c.config)
		blocks, err := flannel.ParseKey(c.key)
		if err != nil {
			t.Fatal(err)
		}
		node, err := n.Node(blocks, []byte(c.value))
		if err != nil {
			t.Fatalf("%s: %v", c.value, err)
		}
		record, _ := json.Marshal(node)
		if diff := cmp.Diff(c.record, string(record)); diff != "" {
			t.Error(diff)
		}
		if value, err := n.Value(node); err != nil || string(value) != c.value {
			t.Errorf("got %s, %v\nwant %s", value, err, c.value)
		}
		if key, err := flannel.Key(node.Blocks); err != nil || key != c.key {
			t.Errorf("got key %s, %v, want %s", key, err, c.key)
		}
		annotations, err := n.Annotations(node)
		if err != nil {
			t.Fatal(err)
		}
		if b, ok := flannel.BackendOf(annotations); !ok || b != n.Backend {
			t.Errorf("the backend is %s, %v", b, ok)
		}
		again, err := n.FromAnnotations(annotations)
		if again.Name, again.Blocks = node.Name, node.Blocks; err != nil || !again.Equal(node) {
			t.Errorf("%v became %+v, %v", annotations, again, err)
		}
	}
}

func TestAnnotations(t *testing.T) {
	n := parse(t, recorded[1].config)
	node, err := n.Node([]netip.Prefix{netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fc00:0:0:1::/64")}, []byte(recorded[1].value))
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.Annotations(node)
	if err != nil {
		t.Fatal(err)
	}
	prefix := "flannel.alpha.coreos.com/"
	want := map[string]string{
		prefix + "backend-type": "vxlan", prefix + "kube-subnet-manager": "true", prefix + "public-ip": "192.0.2.7", prefix + "public-ipv6": "2001:db8::7",
		prefix + "backend-data": `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, prefix + "backend-v6-data": `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	delete(got, prefix+"kube-subnet-manager")
	if _, ok := flannel.BackendOf(got); ok {
		t.Error("a node without kube-subnet-manager is one of flannel's")
	}
	assumed := flannel.Assume(flannel.VXLAN, node.Blocks)
	again, err := assumed.FromAnnotations(got)
	if again.Name, again.Blocks, again.Tunneled = node.Name, node.Blocks, false; err != nil || !again.Equal(node) {
		t.Errorf("without the configuration: %+v, %v", again, err)
	}
	if diff := cmp.Diff(want[prefix+"backend-v6-data"], must(assumed.Annotations(node))[prefix+"backend-v6-data"]); diff != "" {
		t.Error(diff)
	}
}

func TestNodeRefuses(t *testing.T) {
	n := parse(t, recorded[1].config)
	blocks := []netip.Prefix{netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fc00:0:0:1::/64")}
	for _, c := range []struct{ old, new, want string }{
		{`{"PublicIP"`, `"PublicIP"`, "invalid character"},
		{`"192.0.2.7"`, `"x"`, `public address "x"`},
		{`"192.0.2.7"`, `"224.0.0.1"`, "not one that other nodes can reach"},
		{`"192.0.2.7"`, `"2001:db8::9"`, "at most one of each family"},
		{`"192.0.2.7","PublicIPv6":"2001:db8::7"`, `"0.0.0.0","PublicIPv6":"::"`, "no public address"},
		{`"vxlan"`, `"udp"`, `no backend "udp"`},
		{`"c6:d2:32:6f:8f:44"}}`, `"c7:d2:32:6f:8f:44"}}`, "not the address of one interface"},
		{`"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`, `"VNI":2,"VtepMAC":"c6:d2:32:6f:8f:44"}}`, "VNI 1 for IPv4 and 2 for IPv6"},
		{`"vxlan"`, `"` + strings.Repeat("v", 20000) + `"`, "at most 16384"},
		{`"BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, `"BackendData":null`, "no backend data"},
		{`"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, `"wireguard","BackendData":{"PublicKey":"x"}`, "not a key"},
		{`"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`,
			`"wireguard","BackendData":{"PublicKey":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="},"BackendV6Data":{"PublicKey":"AgEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="}`, "two keys"},
	} {
		_, err := n.Node(blocks, []byte(strings.Replace(recorded[1].value, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: got %v, want one line with %q", c.new, err, c.want)
		}
	}
}

// TestValueRefuses: a node that flannel's nodes couldn't reach isn't told to them.
func TestValueRefuses(t *testing.T) {
	n := parse(t, recorded[1].config)
	for want, edit := range map[string]func(*peer.Node){
		"which this node can't receive": func(p *peer.Node) { p.VXLAN = nil },
		"and this node 9 and 8472":      func(p *peer.Node) { p.VXLAN = &peer.VXLAN{VNI: 9, Port: 8472} },
		"no address of that family":     func(p *peer.Node) { p.Addresses = p.Addresses[:1] },
	} {
		node, err := n.Node([]netip.Prefix{netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fc00:0:0:1::/64")}, []byte(recorded[1].value))
		if err != nil {
			t.Fatal(err)
		}
		edit(&node)
		if _, err := n.Value(node); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if _, err := n.Annotations(node); err == nil {
			t.Errorf("annotations without %q", want)
		}
	}
}

func must(annotations map[string]string, err error) map[string]string {
	if err != nil {
		panic(err)
	}
	return annotations
}

func TestOutside(t *testing.T) {
	for config, want := range map[string]string{
		recorded[1].config: "[10.5.0.0/24 fc00::/64]",
		`{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.64.16.0","SubnetMax":"10.127.224.0","Backend":{"Type":"host-gw"}}`: "[10.0.0.0/10 10.64.0.0/20 10.127.240.0/20 10.128.0.0/9]",
	} {
		n := parse(t, config)
		if got := fmt.Sprint(n.Outside()); got != want {
			t.Errorf("%s: got %s, want %s", config, got, want)
		}
		for _, b := range n.Outside() {
			if n.Holds(b) == nil {
				t.Errorf("%v is inside", b)
			}
		}
	}
}

func TestParseKeyRefuses(t *testing.T) {
	for _, key := range []string{"", "10.5.34.0", "10.5.34.0-33", "10.5.34.1-24", "010.5.34.0-24", "10.5.34.0-24&", "10.5.34.0-24&10.5.35.0-24", "fc00::-64", "fc00::-64&10.5.34.0-24", "10.5.34.0-24&fc00:0::-64", "10.5.34.0-24&fc00::-64&fc01::-64", "10.5.34.0-+24", "x/10.5.34.0-24"} {
		if blocks, err := flannel.ParseKey(key); err == nil {
			t.Errorf("%s is the key of %v", key, blocks)
		}
	}
}

func FuzzNode(f *testing.F) {
	for i, r := range recorded {
		f.Add(uint8(i), r.value)
	}
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		r := recorded[int(which)%len(recorded)]
		n := parse(t, r.config)
		blocks, _ := flannel.ParseKey(r.key)
		node, err := n.Node(blocks, []byte(value))
		if err != nil {
			return
		}
		if err := node.Check(); err != nil {
			t.Error(err)
		}
		var a struct{ BackendType flannel.Backend }
		if json.Unmarshal([]byte(value), &a) != nil || a.BackendType != n.Backend {
			return // it couldn't be written
		}
		again, err := n.Value(node)
		if err != nil {
			return // of another VNI or family
		}
		if got, err := n.Node(blocks, again); err != nil || !got.Equal(node) {
			t.Errorf("%s became %s: %+v, %v", value, again, got, err)
		}
	})
}

func FuzzParseNetwork(f *testing.F) {
	for _, r := range recorded {
		f.Add(r.config)
	}
	f.Fuzz(func(t *testing.T, config string) {
		n, err := flannel.ParseNetwork([]byte(config))
		if err != nil {
			return
		}
		for _, r := range n.Ranges {
			for _, i := range []uint64{0, r.Size() / 2, r.Size() - 1} {
				if s := r.Subnet(i); !r.Holds(s) {
					t.Errorf("%s: subnet %d is %v", config, i, s)
				}
			}
		}
	})
}

func FuzzParseKey(f *testing.F) {
	for _, r := range recorded {
		f.Add(r.key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		blocks, err := flannel.ParseKey(key)
		if err != nil {
			return
		}
		if again, err := flannel.Key(blocks); err != nil || again != key {
			t.Errorf("%s became %s, %v", key, again, err)
		}
	})
}
