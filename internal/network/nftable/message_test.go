package nftable

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// TestAttributes checks that what is written is read back, and aligned as netlink(7) wants it.
func TestAttributes(t *testing.T) {
	t.Parallel()
	a := Attributes{}.Text(20, "name").Number(21, 7).Key("key1", "key2").Verdict(22, unix.NFT_JUMP, "chain").Verdict(23, 0, "")
	if len(a)%unix.NLA_ALIGNTO != 0 {
		t.Errorf("%d bytes aren't aligned", len(a))
	}
	var got []string
	for typ, value := range nlsock.Attributes(a) {
		text := ParseData(value)
		switch typ {
		case 20:
			text = unix.ByteSliceToString(value)
		case 21:
			text = fmt.Sprint(ParseNumber(value))
		case 22, 23:
			text = ParseVerdict(value)
		}
		got = append(got, text)
	}
	if want := []string{"name", "7", "key1", "key2", "chain", ""}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if ParseNumber([]byte{1, 2}) != 0 || ParseData(nil) != "" || ParseVerdict([]byte("short")) != "" {
		t.Error("malformed attributes have a value")
	}
}

// TestComment checks that the comments of rules stay as they are: a table whose comments differ is
// made anew, in which packets may be lost.
func TestComment(t *testing.T) {
	t.Parallel()
	r := NewRule("in", "1", &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
	if want := "husk cae64ecc"; r.Comment != want {
		t.Errorf("the comment is %q, want %q", r.Comment, want)
	}
	other := NewRule("in", "2", &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
	if other.Comment == r.Comment {
		t.Error("a rule of another layout has the same comment")
	}
}

func TestParseCounter(t *testing.T) {
	t.Parallel()
	raw, err := expr.Marshal(unix.NFPROTO_INET, &expr.Counter{Packets: 5})
	if err != nil {
		t.Fatal(err)
	}
	if packets, ok := ParseCounter(raw); !ok || packets != 5 {
		t.Errorf("%d packets, %t", packets, ok)
	}
	if _, ok := ParseCounter([]byte("no counter")); ok {
		t.Error("something else is a counter")
	}
}
