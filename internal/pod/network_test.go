package pod

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
)

func TestNetworkSettings(t *testing.T) {
	t.Parallel()
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	asked := Attachment{
		Sandbox: "id", Netns: "/run/netns/x", IfName: "eth0",
		Ports: []PortMapping{
			{Protocol: TCP, HostPort: 8080, Port: 80},
			{Protocol: TCP, HostIP: addr("127.0.0.1"), HostPort: 8081, Port: 80},
			{Protocol: UDP, HostIP: addr("fd00::1"), HostPort: 53, Port: 53},
		},
	}
	got := NewNetworkSettings(asked, []Attached{
		{
			Network: "husk", IfName: "eth0", MAC: "02:00:00:00:00:01",
			Addresses: []netip.Prefix{prefix("10.1.2.3/24"), prefix("fd01::2/64"), prefix("10.9.9.9/16"), prefix("fd09::9/48")},
			Gateways:  []netip.Addr{addr("fd01::1"), addr("10.1.2.1")},
		},
		{Network: "six", IfName: "eth1", Addresses: []netip.Prefix{prefix("fd02::2/128")}},
	})
	want := NetworkSettings{
		SandboxID: "id", SandboxKey: "/run/netns/x",
		Ports: map[string][]PortBinding{
			"80/tcp": {{"0.0.0.0", "8080"}, {"127.0.0.1", "8081"}},
			"53/udp": {{"fd00::1", "53"}},
		},
		Networks: map[string]Endpoint{
			// The first address of each family is the one that counts.
			"husk": {
				IFName: "eth0", IPAddress: "10.1.2.3", IPPrefixLen: 24, Gateway: "10.1.2.1",
				GlobalIPv6Address: "fd01::2", GlobalIPv6PrefixLen: 64, IPv6Gateway: "fd01::1", MacAddress: "02:00:00:00:00:01",
			},
			"six": {IFName: "eth1", GlobalIPv6Address: "fd02::2", GlobalIPv6PrefixLen: 128},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

// TestNetworkSettingsOfTheHost checks that a sandbox in the host's network has empty objects, not
// null, for the tools that read them.
func TestNetworkSettingsOfTheHost(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(NewNetworkSettings(Attachment{Sandbox: "id"}, nil))
	if want := `{"SandboxID":"id","SandboxKey":"","Ports":{},"Networks":{}}`; err != nil || string(raw) != want {
		t.Errorf("%s, %v; want %s", raw, err, want)
	}
}

// TestAttachmentRoundTrip checks the encoding of attachments in the journal.
func TestAttachmentRoundTrip(t *testing.T) {
	t.Parallel()
	for _, a := range []Attachment{
		{Sandbox: "id", Pod: Ref{"ns", "name", "uid"}, Netns: "/run/netns/x", IfName: "eth0"},
		{Sandbox: "id", IfName: "eth0", Ports: []PortMapping{
			{Protocol: SCTP, HostPort: 65535, Port: 1},
			{Protocol: TCP, HostIP: netip.MustParseAddr("fe80::1%eth0"), HostPort: 1, Port: 65535},
		}},
	} {
		raw, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		var back Attachment
		if err := json.Unmarshal(raw, &back); err != nil || !reflect.DeepEqual(back, a) {
			t.Errorf("%s is read as %+v, %v", raw, back, err)
		}
	}
}
