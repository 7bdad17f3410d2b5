package request

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/pod"
)

func TestRead(t *testing.T) {
	r, err := Read(map[string]string{
		IPs: "10.0.0.5, fd00::5/64", MAC: "02:00:00:00:00:01", Ingress: "1M", Egress: "10G",
		Networks:       "kube-system/a, b@data0",
		NetworksISulad: `[{"name":"c","interface":"eth3","ips":["10.1.0.5/24"],"mac":"02:00:00:00:00:02","infiniband-guid":"00:11:22:33:44:55:66:77","deviceID":"0000:01:00.0"},{"name":"d"}]`,
		"unrelated":    "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(r)
	want := `{"First":{"name":"","interface":"","ips":["10.0.0.5","fd00::5/64"],"mac":"02:00:00:00:00:01","infiniband-guid":"","deviceID":""},` +
		`"More":[{"name":"a","interface":"","ips":null,"mac":"","infiniband-guid":"","deviceID":""},{"name":"b","interface":"data0","ips":null,"mac":"","infiniband-guid":"","deviceID":""},` +
		`{"name":"c","interface":"eth3","ips":["10.1.0.5/24"],"mac":"02:00:00:00:00:02","infiniband-guid":"00:11:22:33:44:55:66:77","deviceID":"0000:01:00.0"},{"name":"d","interface":"","ips":null,"mac":"","infiniband-guid":"","deviceID":""}],` +
		`"Bandwidth":{"ingressRate":1000000,"ingressBurst":2097152,"egressRate":10000000000,"egressBurst":1000000000}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if a := r.First.Addresses(); len(a) != 2 || a[1] != netip.MustParseAddr("fd00::5") {
		t.Errorf("addresses %v", a)
	}
	if r, err := Read(nil); err != nil || r.Bandwidth != (pod.Bandwidth{}) || len(r.More) != 0 {
		t.Errorf("nothing: %+v, %v", r, err)
	}
}

func TestBadAnnotations(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{IPs, "10.0.0.300", `"10.0.0.300" is not an IP address`},
		{IPs, "10.0.0.5,10.0.0.5/24", "10.0.0.5 is listed twice"},
		{IPs, "127.0.0.1", "not an address that a pod can have"},
		{IPs, "fe80::1%eth0", "is not an IP address"},
		{IPs, "10.0.0.5,,", `"" is not an IP address`},
		{MAC, "02-00-00-00-00-01", "not 6 bytes in hex"},
		{MAC, "02:00:00:00:00", "not 6 bytes in hex"},
		{MAC, "01:00:00:00:00:01", "a multicast address"},
		{Ingress, "fast", `"fast" is not a rate`},
		{Ingress, "10", "from 1k to 1P"},
		{Egress, "2P", "from 1k to 1P"},
		{Egress, "-1M", "from 1k to 1P"},
		{Networks, "a,,b", "network 2: has no name"},
		{Networks, "a@lo", `"lo" is not a valid interface name`},
		{Networks, "a@a-name-too-long-for-linux", "is not a valid interface name"},
		{Networks, "a@x,b@x", "two networks request interface x"},
		{Networks, "a@../x", "is not a valid interface name"},
		{NetworksISulad, `[{"name":"c"`, "is not a JSON list of networks"},
		{NetworksISulad, `[{"name":"c","infiniband-guid":"1"}]`, "not 8 bytes"},
		{NetworksISulad, `[{"interface":"eth1"}]`, "has no name"},
	} {
		_, err := Read(map[string]string{c.key: c.value})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s: got %v, want …%s…", c.key, c.value, err, c.want)
		}
	}
}

func TestArgs(t *testing.T) {
	a := pod.Attachment{Sandbox: "id", Pod: pod.Ref{Namespace: "ns", Name: "n", UID: "u"}}
	args, err := Args(a)
	if err != nil || len(args) != 5 || args[4] != [2]string{"K8S_POD_UID", "u"} {
		t.Errorf("%v, %v", args, err)
	}
	for _, bad := range []string{"a;b", "a=b", "a\nb", "a\x00"} {
		a.Pod.Name = bad
		if _, err := Args(a); err == nil || !strings.Contains(err.Error(), "K8S_POD_NAME") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCapabilitiesPerInterface(t *testing.T) {
	f := Facts{
		Attachment: pod.Attachment{IfName: "eth0", Pod: pod.Ref{Name: "n"}, Ports: []pod.PortMapping{{Protocol: pod.TCP, HostPort: 1, Port: 1}}},
		Ranges:     []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")},
		Bandwidth:  pod.Bandwidth{IngressRate: 1000},
	}
	first, second := f.Capabilities(Interface{IfName: "eth0"}), f.Capabilities(Interface{IfName: "eth1", DeviceID: "d"})
	for _, once := range []string{"portMappings", "bandwidth"} {
		if first[once] == nil || second[once] != nil {
			t.Errorf("%s: first %v, second %v", once, first[once], second[once])
		}
	}
	if got, _ := json.Marshal(second["ipRanges"]); string(got) != `[[{"subnet":"10.0.0.0/16"}],[{"subnet":"fd00::/64"}]]` {
		t.Errorf("ipRanges %s", got)
	}
	if second["deviceID"] != "d" || first["deviceID"] != nil {
		t.Error("deviceID is passed to the wrong interface")
	}
}

func FuzzAnnotation(f *testing.F) {
	for _, s := range []string{"a@b", `[{"name":"c"}]`, "10.0.0.5/24", "1M", "02:00:00:00:00:01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, key := range []string{IPs, MAC, Ingress, Networks} {
			r, err := Read(map[string]string{key: s})
			if err == nil {
				for _, a := range r.First.Addresses() {
					if !a.IsValid() {
						t.Fatalf("%q: invalid address", s)
					}
				}
			}
		}
	})
}
