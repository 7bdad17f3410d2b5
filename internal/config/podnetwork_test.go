package config

import (
	"fmt"
	"testing"
)

func TestBGPPeers(t *testing.T) {
	for peer, want := range map[string]string{
		"192.0.2.254=65000":          "[{192.0.2.254 65000 false}]",
		"2001:db8::1=4200000000/bfd": "[{2001:db8::1 4200000000 true}]",
		"192.0.2.254":                "",
		"192.0.2.254=0":              "",
		"192.0.2.254=65000/BFD":      "",
		"192.0.2.254/bfd=65000":      "",
		"fe80::1%eth0=65000":         "",
	} {
		b := BGP{Peers: []string{peer}}
		got, err := b.BGPPeers()
		if (err == nil) != (want != "") || err == nil && fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, %v, want %s", peer, got, err, want)
		}
	}
}
