package result

import (
	"fmt"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/pod"
)

func read(answer, version string) (pod.Attached, error) {
	raw, err := Parse([]byte(answer), version)
	if err != nil {
		return pod.Attached{}, err
	}
	return Attached(raw, "eth0", true)
}

func TestResultsOfAllVersions(t *testing.T) {
	for _, c := range []struct{ name, version, answer, want string }{
		{"1.1.0 of a bridge", "1.1.0", `{"cniVersion":"1.1.0","interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"},{"name":"veth1"},{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1450,"sandbox":"/n"}],
		 "ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":2},{"address":"fd00::2/64","gateway":"fd00::1","interface":2}],"dns":{}}`,
			"eth0 02:00:00:00:00:02 1450 veth1 [10.0.0.2/24 fd00::2/64] [10.0.0.1 fd00::1]"},
		{"addresses of other interfaces", "1.0.0", `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"},{"name":"net1","sandbox":"/n"}],"ips":[{"address":"10.0.0.2/24","interface":0},{"address":"10.1.0.2/24","interface":1}]}`,
			"eth0  0  [10.0.0.2/24] []"},
		{"no version", "0.4.0", `{"ips":[{"version":"4","address":"10.0.0.2/24"}]}`, "eth0  0  [10.0.0.2/24] []"},
		{"0.2.0", "0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1"},"ip6":{"ip":"fd00::2/64"}}`, "eth0  0  [10.0.0.2/24 fd00::2/64] [10.0.0.1]"},
		{"a later version than asked", "0.3.1", `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`, "eth0  0  [10.0.0.2/24] []"},
		{"an earlier one", "1.0.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`, "eth0  0  [10.0.0.2/24] []"},
		{"two gateways of a family", "1.0.0", `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1"},{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`, "eth0  0  [10.0.0.2/24 10.1.0.2/24] [10.0.0.1]"},
	} {
		a, err := read(c.answer, c.version)
		got := fmt.Sprint(a.IfName, " ", a.MAC, " ", a.MTU, " ", a.HostLink, " ", a.Addresses, " ", a.Gateways)
		if err != nil || got != c.want {
			t.Errorf("%s: got %s, %v\nwant %s", c.name, got, err, c.want)
		}
	}
	raw, err := Parse([]byte(`{"ips":[],"x":{"later":1}}`), "1.0.0")
	if err != nil || string(raw) != `{"cniVersion":"1.0.0","ips":[],"x":{"later":1}}` {
		t.Errorf("unknown fields are lost: %s, %v", raw, err)
	}
	if _, err := Attached(raw, "eth1", false); err != nil {
		t.Errorf("an interface without address: %v", err)
	}
}

func TestBadResults(t *testing.T) {
	with := func(ips string) string {
		return `{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[` + ips + `]}`
	}
	for _, c := range []struct{ name, answer, want string }{
		{"empty", ``, "returned nothing"},
		{"blank", " \n", "returned nothing"},
		{"null", `null`, "null"},
		{"text", `ok`, "not a CNI result: invalid character"},
		{"two", `{}{}`, "not a CNI result"},
		{"number for a name", `{"interfaces":[{"name":1}]}`, "not a CNI result"},
		{"number for a version", `{"cniVersion":1}`, "not a CNI result"},
		{"unknown version", `{"cniVersion":"7.0.0"}`, "unknown version"},
		{"null interface", `{"interfaces":[null]}`, "interfaces[0] of its result is null"},
		{"null ip", with(`null`), "ips[0] of its result is null"},
		{"null route", `{"routes":[null]}`, "routes[0]"},
		{"index too large", with(`{"version":"4","address":"10.0.0.2/24","interface":1}`), "refers to interface 1 of 1"},
		{"index below", with(`{"version":"4","address":"10.0.0.2/24","interface":-1}`), "refers to interface -1"},
		{"index without interfaces", `{"cniVersion":"0.4.0","ips":[{"address":"10.0.0.2/24","interface":0}]}`, "interface 0 of 0"},
		{"no prefix length", with(`{"version":"4","address":"10.0.0.2"}`), `"10.0.0.2" is not an address with a prefix length`},
		{"no address", with(`{"version":"4"}`), `"" is not an address`},
		{"wrong family", with(`{"version":"6","address":"10.0.0.2/24"}`), "10.0.0.2/24 is not an IPv6 address"},
		{"mapped", with(`{"version":"6","address":"::ffff:10.0.0.2/120"}`), "is not an address that a pod can have"},
		{"gateway of another family", with(`{"version":"4","address":"10.0.0.2/24","gateway":"fd00::1"}`), "gateway fd00::1 and address 10.0.0.2/24 are of different families"},
		{"gateway", with(`{"version":"4","address":"10.0.0.2/24","gateway":"x"}`), `gateway "x" is not an address`},
		{"twice", with(`{"address":"10.0.0.2/24"},{"address":"10.0.0.2/32"}`), "10.0.0.2 is listed twice"},
		{"loopback", with(`{"address":"127.0.0.1/8"}`), "not an address that a pod can have"},
		{"multicast", with(`{"address":"224.0.0.1/8"}`), "not an address that a pod can have"},
		{"unspecified", with(`{"address":"0.0.0.0/0"}`), "not an address that a pod can have"},
		{"none", with(``), "no address for eth0"},
		{"of another interface", `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/n"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}`, "no interface eth0 in the pod"},
		{"of the host's", `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}`, "no interface eth0 in the pod"},
		{"old wrong family", `{"cniVersion":"0.2.0","ip6":{"ip":"10.0.0.2/24"}}`, "is not an IPv6 address"},
	} {
		_, err := read(c.answer, "0.4.0")
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want …%s…", c.name, err, c.want)
		}
	}
}

func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}`), "0.2.0")
	f.Add([]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`), "1.0.0")
	f.Add([]byte(`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{}}`), "1.1.0")
	f.Fuzz(func(t *testing.T, answer []byte, version string) {
		raw, err := Parse(answer, version)
		if err != nil {
			return
		}
		a, err := Attached(raw, "eth0", true)
		if err == nil && (len(a.Addresses) == 0 || !a.Addresses[0].IsValid()) {
			t.Fatalf("no address: %+v", a)
		}
	})
}
