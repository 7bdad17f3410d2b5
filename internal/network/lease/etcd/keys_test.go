package etcd

import (
	"net/netip"
	"testing"
)

func TestBlockKeys(t *testing.T) {
	for _, c := range []struct{ block, key string }{
		{"10.201.7.0/24", "blocks/010.201.007.000-24"},
		{"fd68:7573:6b00:7::/64", "blocks/fd68:7573:6b00:0007:0000:0000:0000:0000-64"},
	} {
		b := netip.MustParsePrefix(c.block)
		if got := blockKey(b); got != c.key {
			t.Errorf("key of %v is %s, want %s", b, got, c.key)
		}
		if got, err := parseBlockKey(c.key); err != nil || got != b {
			t.Errorf("key %s is of %v, %v, want %v", c.key, got, err, b)
		}
		first, end := rangeWithin(b)
		for inner, want := range map[string]bool{c.block: true, "10.201.7.255/32": true, "10.201.8.0/24": false, "10.201.6.0/24": false,
			"fd68:7573:6b00:7:ffff:ffff:ffff:ffff/128": true, "fd68:7573:6b00:8::/64": false, "fd68:7573:6b00:7::/60": true} {
			i := netip.MustParsePrefix(inner)
			if key := blockKey(i); i.Addr().Is4() == b.Addr().Is4() && (key >= first && key < end) != want {
				t.Errorf("key %s between %s and %s: want %v", key, first, end, want)
			}
		}
	}
}

func FuzzParseBlockKey(f *testing.F) {
	f.Add("blocks/010.201.007.000-24")
	f.Add("blocks/fd68:7573:6b00:0007:0000:0000:0000:0000-64")
	f.Fuzz(func(t *testing.T, key string) {
		if b, err := parseBlockKey(key); err == nil && blockKey(b) != key {
			t.Errorf("key %q is of %v, whose key is %q", key, b, blockKey(b))
		}
	})
}
