package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/lease/flannel"
	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/peer"
)

var _ lease.Store = (*etcd.Flannel)(nil)

const (
	dualStack = `{"Network":"10.201.0.0/16","EnableIPv6":true,"IPv6Network":"fd68:7573:6b00::/48","Backend":{"Type":"vxlan"}}`
	onlyIPv4  = `{"Network":"10.201.0.0/16","Backend":{"Type":"vxlan"}}`
	// flanneldValue is as flanneld writes it.
	flanneldValue = `{"PublicIP":"192.0.2.99","PublicIPv6":"2001:db8::99","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}}`
)

// network is a flannel network in an etcd of its own.
type network struct {
	t      *testing.T
	server *server
	client *clientv3.Client
}

func newNetwork(t *testing.T, config string) *network {
	t.Helper()
	n := &network{t: t, server: start(t)}
	n.client = n.server.client("", "")
	n.put("config", config)
	return n
}

const prefix = flannel.DefaultPrefix + "/"

func (n *network) put(key, value string, opts ...clientv3.OpOption) {
	n.t.Helper()
	if _, err := n.client.Put(n.t.Context(), prefix+key, value, opts...); err != nil {
		n.t.Fatal(err)
	}
}

// flanneld writes a lease that ends with the returned function.
func (n *network) flanneld(key, value string) (revoke func()) {
	n.t.Helper()
	grant, err := n.client.Grant(n.t.Context(), 3600)
	if err != nil {
		n.t.Fatal(err)
	}
	n.put("subnets/"+key, value, clientv3.WithLease(grant.ID))
	return func() {
		if _, err := n.client.Revoke(n.t.Context(), grant.ID); err != nil {
			n.t.Error(err)
		}
	}
}

// leases returns the keys of the leases with their values.
func (n *network) leases() map[string]string {
	n.t.Helper()
	resp, err := n.client.Get(n.t.Context(), prefix+"subnets/", clientv3.WithPrefix())
	if err != nil {
		n.t.Fatal(err)
	}
	out := map[string]string{}
	for _, kv := range resp.Kvs {
		out[strings.TrimPrefix(string(kv.Key), prefix+"subnets/")] = string(kv.Value)
	}
	return out
}

func (n *network) open() *etcd.Flannel {
	n.t.Helper()
	f, err := etcd.NewFlannel(etcd.Config{Endpoints: []string{n.server.url}}, flannel.DefaultPrefix)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { f.Close() })
	return f
}

func ofNumber(i byte) peer.Node {
	return peer.Node{Version: peer.Version, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, i}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i))},
		VXLAN: &peer.VXLAN{VNI: 1, Port: 8472, MAC: peer.MAC{2, 0, 0, 0, 0, i}}}
}

// join runs a node of Husk until the test ends.
func (n *network) join(cluster *leasetest.Cluster, name string, record peer.Node) (*member, func()) {
	n.t.Helper()
	m := &member{t: n.t, name: name}
	m.Keeper = cluster.Keeper(n.t, name)
	m.Announce(record)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, m.update) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(stop)
	return m, stop
}

// soon waits until check returns "".
func soon(t *testing.T, check func() string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text := check()
		if text == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(text)
		}
	}
}

// TestFlannel: nodes of Husk and of flannel are in one network.
func TestFlannel(t *testing.T) {
	n := newNetwork(t, dualStack)
	revoke := n.flanneld("10.201.9.0-24&fd68:7573:6b00:9::-64", flanneldValue)
	n.put("subnets/10.201.8.0-24", `{"PublicIP":"192.0.2.98","BackendType":"udp"}`) // a reservation of a node that can't be reached
	n.put("subnets/rubbish", "{")
	cluster := &leasetest.Cluster{Store: n.open()}
	a, _ := n.join(cluster, "a", ofNumber(1))
	b, stopB := n.join(cluster, "b", ofNumber(2))
	for _, m := range []*member{a, b} {
		other, number := "b", byte(2)
		if m == b {
			other, number = "a", 1
		}
		soon(t, func() string {
			v := m.now()
			if len(v.Blocks) != 2 || m.May(v.Blocks[0]) != nil || m.May(v.Blocks[1]) != nil || len(v.Peers) != 2 || len(v.Peers[1].Blocks) != 2 {
				return fmt.Sprintf("node %s has the view %+v", m.name, v)
			}
			p := v.Peers[0]
			if fmt.Sprint(p.Name, p.Blocks, p.VXLAN.MAC6, p.Tunneled) != fmt.Sprint("192.0.2.99[10.201.9.0/24 fd68:7573:6b00:9::/64] ", peer.MAC{0xc6, 0xd2, 0x32, 0x6f, 0x8f, 0x45}, true) {
				return fmt.Sprintf("flanneld's node is %+v", p)
			}
			if q := v.Peers[1]; q.Name != other || q.Addresses[0] != ofNumber(number).Addresses[0] {
				return fmt.Sprintf("the other node is %+v", q)
			}
			return ""
		})
		notes := strings.Join(m.now().Notes, "\n")
		for _, want := range []string{`10.201.8.0-24: flannel's lease of [10.201.8.0/24]: Husk has no backend "udp"`, `subnets/rubbish: "rubbish" is not the key of a flannel lease`} {
			if !strings.Contains(notes, want) {
				t.Errorf("notes of node %s: %s, want %q", m.name, notes, want)
			}
		}
		key, err := flannel.Key(m.now().Blocks)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.NewReplacer("192.0.2.99", ofNumber(3 - number).Addresses[0].String(), "2001:db8::99", ofNumber(3 - number).Addresses[1].String(),
			"c6:d2:32:6f:8f:44", ofNumber(3-number).VXLAN.MAC.String(), "c6:d2:32:6f:8f:45", ofNumber(3-number).VXLAN.MAC.String()).Replace(flanneldValue)
		if diff := cmp.Diff(want, n.leases()[key]); diff != "" {
			t.Errorf("lease %s of node %s: %s", key, m.name, diff)
		}
	}

	record := ofNumber(7)
	a.Announce(record) // moves
	soon(t, func() string {
		key, _ := flannel.Key(a.now().Blocks)
		if value := n.leases()[key]; !strings.Contains(value, `"192.0.2.7"`) {
			return "the lease is " + value
		}
		return ""
	})

	blocks := b.now().Blocks
	stopB()
	if _, err := n.client.Put(t.Context(), prefix+"config", "{"); err != nil { // the network stays as it was
		t.Fatal(err)
	}
	soon(t, func() string {
		if err := a.Status(); err == nil || !strings.Contains(err.Error(), "flannel's configuration: unexpected end of JSON input") {
			return fmt.Sprint("the status is ", err)
		}
		return ""
	})
	if v := a.now(); len(v.Peers) != 2 || a.May(v.Blocks[0]) != nil {
		t.Errorf("with a broken configuration: %+v", v)
	}
	n.put("config", dualStack)
	b, _ = n.join(cluster, "b", ofNumber(2))
	soon(t, func() string {
		if v := b.now(); !slices.Equal(v.Blocks, blocks) || b.May(blocks[0]) != nil {
			return fmt.Sprintf("after a restart: %+v, want blocks %v", v, blocks)
		}
		return ""
	})
	if value := n.leases()["10.201.9.0-24&fd68:7573:6b00:9::-64"]; value != flanneldValue {
		t.Errorf("flanneld's lease became %s", value)
	}
	revoke()
	soon(t, func() string {
		if v := a.now(); len(v.Peers) != 1 || v.Peers[0].Name != "b" {
			return fmt.Sprintf("flanneld's node stays: %+v", v)
		}
		return ""
	})
}

// TestFlannelPairs: an IPv6 subnet is in the key of an IPv4 subnet.
func TestFlannelPairs(t *testing.T) {
	n := newNetwork(t, dualStack)
	f := n.open()
	kept, err := f.Keep(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	record := ofNumber(1)
	record.Name = "n"
	six, first, second := netip.MustParsePrefix("fd68:7573:6b00:7::/64"), netip.MustParsePrefix("10.201.7.0/24"), netip.MustParsePrefix("10.201.8.0/24")
	bind := func(b netip.Prefix) error {
		return f.Bind(t.Context(), claim.Claim{Block: b, Node: "n", Session: kept.Session}, false)
	}
	if err := bind(first); err == nil || !strings.Contains(err.Error(), "isn't this node's record") {
		t.Errorf("without a record: %v", err)
	}
	if _, err := f.Write(t.Context(), kept.Session, record, 0); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what string
		do   func() error
		want string // of the keys, or of the error
		fail bool
	}{
		{"six alone", func() error { return bind(six) }, "only such of one IPv4 subnet", true},
		{"the network's first", func() error { return bind(netip.MustParsePrefix("10.201.0.0/24")) }, "10.201.0.0/24 is not a node's subnet", true},
		{"another length", func() error { return bind(netip.MustParsePrefix("10.201.9.0/25")) }, "10.201.9.0/25 is not a node's subnet", true},
		{"four", func() error { return bind(first) }, "[10.201.7.0-24]", false},
		{"four again", func() error { return bind(first) }, "[10.201.7.0-24]", false},
		{"six", func() error { return bind(six) }, "[10.201.7.0-24&fd68:7573:6b00:7::-64]", false},
		{"another four", func() error { return bind(second) }, "[10.201.7.0-24&fd68:7573:6b00:7::-64 10.201.8.0-24]", false},
		{"without the first", func() error { return f.Free(t.Context(), kept.Session, first) }, "[10.201.8.0-24&fd68:7573:6b00:7::-64]", false},
		{"without it, again", func() error { return f.Free(t.Context(), kept.Session, first) }, "[10.201.8.0-24&fd68:7573:6b00:7::-64]", false},
		{"without the second", func() error { return f.Free(t.Context(), kept.Session, second) }, "only such of one IPv4 subnet", true},
		{"without six", func() error { return f.Free(t.Context(), kept.Session, six) }, "[10.201.8.0-24]", false},
		{"none", func() error { return f.Free(t.Context(), kept.Session, second) }, "[]", false},
	} {
		err := step.do()
		if step.fail != (err != nil) || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("%s: %v, want %s", step.what, err, step.want)
		}
		var keys []string
		var blocks []netip.Prefix
		for key := range n.leases() {
			keys = append(keys, key)
			of, _ := flannel.ParseKey(key)
			blocks = append(blocks, of...)
		}
		if slices.Sort(keys); !step.fail && fmt.Sprint(keys) != step.want {
			t.Errorf("%s: keys %v, want %s", step.what, keys, step.want)
		}
		slices.SortFunc(blocks, netip.Prefix.Compare)
		if again, err := f.Keep(t.Context(), kept.Session, []netip.Prefix{first, second, six}); err != nil || !slices.Equal(again.Bound, blocks) {
			t.Errorf("%s: kept %v, %v, want %v", step.what, again.Bound, err, blocks)
		}
	}
	record.VXLAN.VNI = 9
	if _, err := f.Write(t.Context(), kept.Session, record, 1); !errors.Is(err, claim.ErrConflict) {
		t.Errorf("write over a record of another revision: %v", err)
	}
}

// TestFlannelRace: of all who want a subnet at the same time, flanneld among them, one has it.
func TestFlannelRace(t *testing.T) {
	n := newNetwork(t, onlyIPv4)
	var wg sync.WaitGroup
	for i := range byte(4) {
		f := n.open()
		record := ofNumber(1 + i)
		record.Name = fmt.Sprint("n", i)
		kept, err := f.Keep(t.Context(), "", nil)
		if err == nil {
			_, err = f.Write(t.Context(), kept.Session, record, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for block := range byte(20) {
				var taken *claim.TakenError
				b := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, 1 + block, 0}), 24)
				if err := f.Bind(t.Context(), claim.Claim{Block: b, Node: record.Name, Session: kept.Session}, false); err != nil && !errors.As(err, &taken) && !strings.Contains(err.Error(), "keep changing") {
					t.Error(err)
				}
			}
		})
	}
	mine := map[string]bool{}
	wg.Go(func() { // as flanneld claims
		for block := range 20 {
			key := prefix + fmt.Sprintf("subnets/10.201.%d.0-24", 1+block)
			resp, err := n.client.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(key), "=", 0)).Then(clientv3.OpPut(key, flanneldValue)).Commit()
			if err != nil {
				t.Error(err)
			} else if resp.Succeeded {
				mine[strings.TrimPrefix(key, prefix+"subnets/")] = true
			}
		}
	})
	wg.Wait()
	all := n.leases()
	if len(all) != 20 {
		t.Errorf("%d leases", len(all))
	}
	for key := range mine {
		if all[key] != flanneldValue {
			t.Errorf("lease %s was flanneld's and is %s", key, all[key])
		}
	}
}

func TestFlannelNetwork(t *testing.T) {
	n := newNetwork(t, onlyIPv4)
	f := n.open()
	if got, err := f.Network(t.Context()); err != nil || got.Backend != flannel.VXLAN || got.Subnets()[0].String() != "10.201.0.0/16" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := n.client.Delete(t.Context(), prefix+"config"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Network(t.Context()); err == nil || !strings.Contains(err.Error(), "is missing: write it to /coreos.com/network/config") {
		t.Error(err)
	}
	for _, bad := range []string{"", "/", "x"} {
		if _, err := etcd.NewFlannel(etcd.Config{Endpoints: []string{n.server.url}}, bad); err == nil {
			t.Errorf("prefix %q is accepted", bad)
		}
	}
}
