package bfd

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
)

// TestDetector runs two detectors until both are up. Then one ends its session, which is no
// failure, and the path goes, which is one. It takes 3 seconds to see that: on a busy machine,
// either end may send nothing for longer than routers wait.
func TestDetector(t *testing.T) {
	for name, at := range map[string][2]netip.Addr{
		"IPv4": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
		"IPv6": {netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			path := filepath.Join(t.TempDir(), "net")
			netnstest.Make(t, path)
			netnstest.IP(t, path, "link set lo up")
			var detectors [2]*Detector
			changed := make(chan struct{}, 100)
			for i, a := range at {
				netnstest.IP(t, path, fmt.Sprintf("address add %v/%d dev lo nodad", a, a.BitLen()))
				if err := netns.Do(path, func() (err error) {
					detectors[i], err = Listen(Config{Interval: 50 * time.Millisecond, Multiplier: 60}, at[i:i+1], nil, func() { changed <- struct{}{} })
					return err
				}); err != nil {
					t.Fatal(err)
				}
				defer detectors[i].Close()
			}
			add := func(i int) {
				t.Helper()
				if err := netns.Do(path, func() error { return detectors[i].Add(at[i], at[1-i]) }); err != nil {
					t.Fatal(err)
				}
			}
			until := func(what string, done func() bool) {
				t.Helper()
				for timeout := time.After(30 * time.Second); !done(); {
					select {
					case <-changed:
					case <-timeout:
						t.Fatal("not " + what)
					}
				}
			}
			both := func() bool { return detectors[0].Up(at[1]) && detectors[1].Up(at[0]) }

			add(0)
			add(1)
			until("up", both)
			detectors[1].Remove(at[0])
			until("down", func() bool { return !detectors[0].Up(at[1]) })
			add(1)
			until("up again", both)
			if got := append(detectors[0].Failures(), detectors[1].Failures()...); len(got) != 0 {
				t.Errorf("a session that its end has ended has failed: %v", got)
			}

			netnstest.IP(t, path, "link set lo down")
			for i, d := range detectors {
				until("failed", func() bool { return !d.Up(at[1-i]) })
				got := d.Failures()
				if len(got) != 1 || got[0].Peer != at[1-i] || got[0].Why == "" || got[0].Seen.Before(began) {
					t.Errorf("failures of %v: %v", at[i], got)
				}
			}
			netnstest.IP(t, path, "link set lo up")
			if at[0].Is6() {
				for _, a := range at { // the kernel removes them with the link
					_, _ = netnstest.Try(path, "ip", "address", "add", a.String()+"/128", "dev", "lo", "nodad")
				}
			}
			until("up after a failure", both)
		})
	}
}
