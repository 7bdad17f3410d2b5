package nodes

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestFormer checks how long addresses stay that have left a list.
func TestFormer(t *testing.T) {
	t.Parallel()
	list := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		slices.SortFunc(out, netip.Addr.Compare)
		return out
	}
	var f former
	start := time.Now()
	for _, step := range []struct {
		after     time.Duration
		due       bool
		now, want []netip.Addr
	}{
		{0, false, list("192.0.2.1", "2001:db8::1"), list("192.0.2.1", "2001:db8::1")},
		{time.Second, false, list("192.0.2.2", "2001:db8::1"), list("192.0.2.1", "192.0.2.2", "2001:db8::1")},
		{30 * time.Second, false, list("192.0.2.2"), list("192.0.2.1", "192.0.2.2", "2001:db8::1")},
		{61 * time.Second, true, list("192.0.2.2"), list("192.0.2.2", "2001:db8::1")},
		{70 * time.Second, false, list("192.0.2.2", "2001:db8::1"), list("192.0.2.2", "2001:db8::1")},
		{200 * time.Second, false, list("192.0.2.2", "2001:db8::1"), list("192.0.2.2", "2001:db8::1")},
		{201 * time.Second, false, nil, list("192.0.2.2", "2001:db8::1")},
		{262 * time.Second, true, nil, nil},
		{263 * time.Second, false, nil, nil},
	} {
		now := start.Add(step.after)
		if got := f.due(now); got != step.due {
			t.Errorf("after %v: due is %v", step.after, got)
		}
		got := f.with(now, step.now, time.Minute)
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, step.want) {
			t.Errorf("after %v: %v, want %v", step.after, got, step.want)
		}
	}
}
