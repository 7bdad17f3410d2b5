package nlsock

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
)

// other does what Conn does, over a socket of github.com/mdlayher/netlink. That package drops the
// sequence number of an error, so answers are matched with requests by their order: one timeout
// would make the socket useless.
type other struct{ c *mdlayher.Conn }

func dialOther(protocol int) (*other, error) {
	c, err := mdlayher.Dial(protocol, nil)
	if err != nil {
		return nil, err
	}
	return &other{c}, errors.Join(
		c.SetOption(mdlayher.ExtendedAcknowledge, true),
		c.SetOption(mdlayher.CapAcknowledge, true),
		c.SetReadDeadline(time.Now().Add(timeout*time.Second)))
}

func (o *other) Close() error { return o.c.Close() }

func (o *other) send(requests []*nl.NetlinkRequest) error {
	messages := make([]mdlayher.Message, len(requests))
	for i, r := range requests {
		messages[i] = mdlayher.Message{
			Header: mdlayher.Header{Type: mdlayher.HeaderType(r.Type), Flags: mdlayher.HeaderFlags(r.Flags)},
			Data:   r.Serialize()[unix.SizeofNlMsghdr:],
		}
	}
	_, err := o.c.SendMessages(messages)
	return err
}

func (o *other) Do(requests ...*nl.NetlinkRequest) []Answer {
	answers := make([]Answer, len(requests))
	err := o.send(requests)
	for i := range answers {
		if err != nil {
			answers[i].Err = err
			continue
		}
		messages, err := o.c.Receive()
		if answers[i].Err = err; err == nil && len(messages) > 0 {
			answers[i].Data = messages[0].Data
		}
	}
	return answers
}

func (o *other) Transact(requests ...*nl.NetlinkRequest) error {
	all := append([]*nl.NetlinkRequest{NftRequest(unix.NFNL_MSG_BATCH_BEGIN)}, requests...)
	all[len(all)-1].Flags |= unix.NLM_F_ACK
	all = append(all, NftRequest(unix.NFNL_MSG_BATCH_END))
	if err := o.send(all); err != nil {
		return err
	}
	_, err := o.c.Receive()
	return err
}

func (o *other) list(request *nl.NetlinkRequest) (n int, err error) {
	request.Flags |= unix.NLM_F_DUMP
	if err := o.send([]*nl.NetlinkRequest{request}); err != nil {
		return 0, err
	}
	messages, err := o.c.Receive()
	return len(messages), err
}

// BenchmarkSocket compares Conn with a socket of github.com/mdlayher/netlink: for one question, for
// a batch as an attachment sends it, for a transaction of nftables, for a list of 200 links, and
// for a socket that is used once.
func BenchmarkSocket(b *testing.B) {
	hosttest.Root(b)
	path := b.TempDir() + "/net"
	must(b, netns.Create(netns.Pins{Net: path}))
	b.Cleanup(func() { must(b, netns.Remove(path)) })
	type socket interface {
		Do(requests ...*nl.NetlinkRequest) []Answer
		Transact(requests ...*nl.NetlinkRequest) error
		Close() error
	}
	dials := map[string]func(protocol int) (socket, error){
		"nlsock":   func(protocol int) (socket, error) { return Dial(protocol) },
		"mdlayher": func(protocol int) (socket, error) { return dialOther(protocol) },
	}
	sockets := map[string][2]socket{}
	must(b, netns.Do(path, func() error {
		for name, dial := range dials {
			links, err := dial(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			tables, err := dial(unix.NETLINK_NETFILTER)
			if err != nil {
				return err
			}
			sockets[name] = [2]socket{links, tables}
		}
		for i := range 100 {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = fmt.Sprint("veth", i)
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprint("peer", i)}); err != nil {
				return err
			}
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "t"})
		return errors.Join(c.AddSet(&nftables.Set{Table: table, Name: "s", KeyType: nftables.TypeIPAddr}, nil), c.Flush())
	}))
	element := func(verb int, last byte) *nl.NetlinkRequest {
		req := NftRequest(verb)
		req.Flags |= unix.NLM_F_CREATE
		req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated("t")))
		req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated("s")))
		list := nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, nil)
		list.AddRtAttr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil).
			AddRtAttr(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_DATA_VALUE, []byte{10, 0, 0, last})
		req.AddData(list)
		return req
	}
	first := func(answers []Answer) error {
		for _, a := range answers {
			if a.Err != nil {
				return a.Err
			}
		}
		return nil
	}
	for _, c := range []struct {
		name string
		run  func(name string, links, tables socket) error
	}{
		{"question", func(_ string, links, _ socket) error { return first(links.Do(link(1))) }},
		{"batch of 8", func(_ string, links, _ socket) error {
			return first(links.Do(
				route(32, unix.RTM_NEWROUTE), link(1), link(2), link(3),
				route(32, unix.RTM_DELROUTE), route(32, unix.RTM_NEWROUTE), link(4), route(32, unix.RTM_DELROUTE)))
		}},
		{"transaction", func(_ string, _, tables socket) error {
			return tables.Transact(
				element(unix.NFT_MSG_NEWSETELEM, 1), element(unix.NFT_MSG_NEWSETELEM, 2),
				element(unix.NFT_MSG_DELSETELEM, 1), element(unix.NFT_MSG_DELSETELEM, 2))
		}},
		{"list of 200", func(_ string, links, _ socket) (err error) {
			n := 0
			switch s := links.(type) {
			case *Conn:
				var all []int
				all, err = List(s, link(0), func(data []byte) (int, bool) { return len(data), true })
				n = len(all)
			case *other:
				n, err = s.list(link(0))
			}
			if n < 200 {
				return fmt.Errorf("%d links: %w", n, errors.Join(err, syscall.ENODATA))
			}
			return err
		}},
		{"dial", func(name string, _, _ socket) error {
			s, err := dials[name](unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			return errors.Join(first(s.Do(link(1))), s.Close())
		}},
	} {
		for name, s := range sockets {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					must(b, c.run(name, s[0], s[1]))
				}
			})
		}
	}
}
