package daemon

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/config"
)

func TestNodeIPs(t *testing.T) {
	t.Parallel()
	cfg := config.New()
	cfg.NodeIP = []string{"203.0.113.77", "2001:db8::77"}
	if err := checkNodeIPs(cfg); err == nil || !strings.Contains(err.Error(), "no interface of this machine has the address 203.0.113.77") {
		t.Errorf("addresses of another machine: %v", err)
	}
	if got := nodeIPs(cfg); !slices.Equal(got, cfg.NodeIP) {
		t.Errorf("got %v", got)
	}
	cfg.NodeIP = []string{"::"}
	found, any6 := nodeIPs(cfg), nodeIPs(config.New())
	if slices.Reverse(any6); len(any6) == 2 && !slices.Equal(found, any6) {
		t.Errorf("IPv6 first: %v, by default reversed %v", found, any6)
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range local {
		if p := netip.MustParsePrefix(a.String()); p.Addr().IsGlobalUnicast() {
			cfg.NodeIP = []string{p.Addr().String()}
			if err := checkNodeIPs(cfg); err != nil {
				t.Error(err)
			}
		}
	}
}
