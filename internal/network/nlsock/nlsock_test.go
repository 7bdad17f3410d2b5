package nlsock

import (
	"bytes"
	"errors"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dial opens a socket in a new network namespace.
func dial(t *testing.T, protocol int) *Conn {
	t.Helper()
	hosttest.Root(t)
	path := t.TempDir() + "/net"
	must(t, netns.Create(netns.Pins{Net: path}))
	t.Cleanup(func() { must(t, netns.Remove(path)) })
	var c *Conn
	must(t, netns.Do(path, func() (err error) {
		c, err = Dial(protocol)
		return err
	}))
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func link(index int32) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = index
	req.AddData(msg)
	return req
}

func route(prefix byte, verb int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(verb, unix.NLM_F_ACK)
	if verb == unix.RTM_NEWROUTE {
		req.Flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: prefix, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNREACHABLE, Protocol: 4}})
	req.AddData(nl.NewRtAttr(unix.RTA_DST, []byte{10, 9, 8, 7}))
	return req
}

func TestDoAnswersEachRequest(t *testing.T) {
	c := dial(t, unix.NETLINK_ROUTE)
	for range 3 {
		got := c.Do(link(1), link(99), route(32, unix.RTM_NEWROUTE), route(32, unix.RTM_NEWROUTE), route(24, unix.RTM_NEWROUTE), route(32, unix.RTM_DELROUTE))
		name := ""
		for typ, value := range Attributes(got[0].Data[unix.SizeofIfInfomsg:]) {
			if typ == unix.IFLA_IFNAME {
				name = unix.ByteSliceToString(value)
			}
		}
		if got[0].Err != nil || name != "lo" {
			t.Errorf("link 1: %v, %q", got[0].Err, name)
		}
		for i, want := range []error{nil, unix.ENODEV, nil, unix.EEXIST, unix.EINVAL, nil} {
			if !errors.Is(got[i].Err, want) {
				t.Errorf("request %d: %v, want %v", i, got[i].Err, want)
			}
		}
	}
}

// TestDoWithoutAnswers checks that a request which asks for no answer fails alone, and that the
// answers to others aren't taken for its own.
func TestDoWithoutAnswers(t *testing.T) {
	c := dial(t, unix.NETLINK_ROUTE)
	quiet := func(verb int) *nl.NetlinkRequest {
		r := route(32, verb)
		r.Flags &^= unix.NLM_F_ACK
		return r
	}
	for range 3 {
		got := c.Do(quiet(unix.RTM_NEWROUTE), quiet(unix.RTM_NEWROUTE), link(1), quiet(unix.RTM_DELROUTE), quiet(unix.RTM_DELROUTE), link(99))
		for i, want := range []error{nil, unix.EEXIST, nil, nil, unix.ESRCH, unix.ENODEV} {
			if !errors.Is(got[i].Err, want) || (got[i].Data != nil) != (i == 2) {
				t.Errorf("request %d: %+v, want %v", i, got[i], want)
			}
		}
	}
}

func TestList(t *testing.T) {
	c := dial(t, unix.NETLINK_ROUTE)
	for range 2 {
		links, err := List(c, link(0), func(data []byte) (int, bool) { return int(data[4]), data[4] > 0 })
		if err != nil || len(links) == 0 || links[0] != 1 {
			t.Errorf("links %v, %v", links, err)
		}
	}
	unknown := link(0)
	unknown.Type = 0x7ffe
	if _, err := List(c, unknown, func([]byte) (int, bool) { return 0, true }); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("an unknown request: %v", err)
	}
}

func TestTransactIsAllOrNothing(t *testing.T) {
	c := dial(t, unix.NETLINK_NETFILTER)
	table := func(name string, verb int) *nl.NetlinkRequest {
		req := NftRequest(verb)
		req.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(name)))
		return req
	}
	for range 2 {
		err := c.Transact(table("a", unix.NFT_MSG_NEWTABLE), table("nothere", unix.NFT_MSG_DELTABLE), table("b", unix.NFT_MSG_NEWTABLE))
		if !errors.Is(err, unix.ENOENT) {
			t.Errorf("got %v", err)
		}
		if err := c.Transact(table("a", unix.NFT_MSG_DELTABLE)); !errors.Is(err, unix.ENOENT) {
			t.Errorf("half of the transaction took effect: %v", err)
		}
		must(t, c.Transact(table("a", unix.NFT_MSG_NEWTABLE), table("b", unix.NFT_MSG_NEWTABLE)))
		must(t, c.Transact(table("a", unix.NFT_MSG_DELTABLE), table("b", unix.NFT_MSG_DELTABLE)))
	}
}

// FuzzAttributes checks that malformed attributes are harmless.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add(nl.NewRtAttr(3, []byte("four")).Serialize(), uint16(0x200))
	f.Add([]byte{9, 0, 1, 0, 1, 2, 3, 4, 5}, uint16(0x200))
	f.Fuzz(func(t *testing.T, data []byte, flags uint16) {
		for _, value := range Attributes(data) {
			if !bytes.Contains(data, value) {
				t.Fatal("a value isn't part of the data")
			}
		}
		for _, typ := range []uint16{unix.NLMSG_ERROR, unix.NLMSG_DONE} {
			_ = ErrorOf(unix.NlMsghdr{Type: typ, Flags: flags}, data)
		}
	})
}

// TestCloseTwice checks that a second Close doesn't close another file that has the number by then.
func TestCloseTwice(t *testing.T) {
	c := dial(t, unix.NETLINK_ROUTE)
	fd := c.fd
	must(t, c.Close())
	if other, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, fd); err != nil || other != fd {
		t.Skipf("another file has taken the number: %d, %v", other, err)
	}
	must(t, c.Close())
	must(t, unix.Close(fd))
	if answers := c.Do(link(1)); answers[0].Err == nil {
		t.Error("a closed socket answers")
	}
}
