package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/peer/peertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ lease.Store = (*etcd.Store)(nil)

// open returns a store that is closed at the test's end.
func open(t testing.TB, cfg etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// clusterNames returns a function that returns another name at each call.
func clusterNames() func() string {
	n := 0
	return func() string { n++; return fmt.Sprint("c", n) }
}

func TestStore(t *testing.T) {
	t.Parallel()
	s, name := start(t), clusterNames()
	const ttl = 2 * time.Second
	leasetest.Run(t, ttl, func(t *testing.T) lease.Store {
		return open(t, etcd.Config{Endpoints: []string{s.url}, Cluster: name(), TTL: ttl})
	})
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	s, name := start(t), clusterNames()
	peertest.Run(t, func(t *testing.T) peertest.Cluster {
		return &leasetest.Cluster{Store: open(t, etcd.Config{Endpoints: []string{s.url}, Cluster: name()})}
	}, peertest.Options{})
}

// member is a node with a connection to etcd of its own.
type member struct {
	*lease.Keeper
	t         testing.TB
	name      string
	store     *etcd.Store
	announced peer.Node
	mu        sync.Mutex
	view      peer.View
}

// join runs a node until the test ends.
func join(t testing.TB, name string, cfg etcd.Config) *member {
	t.Helper()
	m := &member{t: t, name: name, store: open(t, cfg)}
	m.Keeper = (&leasetest.Cluster{Store: m.store}).Keeper(t, name)
	m.announced = peer.Node{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[len(name)-1]})}}
	m.Announce(m.announced)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx, m.update); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return m
}

func (m *member) update(v peer.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.view = v
}

func (m *member) now() peer.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so after a minute: %s", what)
		}
	}
}

// ready waits until the node may use some blocks of each family, and returns all blocks.
func (m *member) ready() []netip.Prefix {
	m.t.Helper()
	eventually(m.t, "node "+m.name+" has blocks that it may use", func() bool {
		blocks := m.now().Blocks
		return len(blocks) >= 2 && !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return m.May(b) != nil })
	})
	return m.now().Blocks
}

func (m *member) noted(text string) {
	m.t.Helper()
	eventually(m.t, "node "+m.name+" has note "+text, func() bool {
		return slices.ContainsFunc(m.now().Notes, func(n string) bool { return strings.Contains(n, text) && !strings.Contains(n, "\n") })
	})
}

// both returns a block that two nodes may use at once.
func both(a, b *member) (netip.Prefix, bool) {
	for _, block := range slices.Concat(a.now().Blocks, b.now().Blocks) {
		if a.May(block) == nil && b.May(block) == nil {
			return block, true
		}
	}
	return netip.Prefix{}, false
}

// TestStopped: while etcd is stopped past the TTL, nodes stop in time, and go on after it.
func TestStopped(t *testing.T) {
	t.Parallel()
	s := start(t)
	cfg := etcd.Config{Endpoints: []string{s.url}, TTL: 4 * time.Second}
	a, b := join(t, "a", cfg), join(t, "b", cfg)
	ofA, ofB := a.ready(), b.ready()
	s.signal(syscall.SIGSTOP)
	stopped := time.Now()
	eventually(t, "both nodes have stopped using their blocks", func() bool { return a.May(ofA[0]) != nil && b.May(ofB[0]) != nil })
	if after := time.Since(stopped); after > cfg.TTL-time.Second {
		t.Errorf("they stopped after %v, later than %v before the TTL", after, time.Second)
	}
	a.noted("no answer in time")
	s.signal(syscall.SIGCONT)
	var again []netip.Prefix
	eventually(t, "both nodes go on", func() bool {
		if block, ok := both(a, b); ok {
			t.Fatalf("both may use %v", block)
		}
		again = a.now().Blocks
		return a.May(ofA[0]) == nil && b.May(ofB[0]) == nil && len(a.now().Notes) == 0
	})
	if !slices.Equal(again, ofA) {
		t.Errorf("node a had %v and has %v", ofA, again)
	}
}

// TestRestored: after etcd was restored from a backup, blocks that were claimed since then are
// claimed again by those who had them, before anybody else may.
func TestRestored(t *testing.T) {
	t.Parallel()
	s := start(t)
	cfg := etcd.Config{Endpoints: []string{s.url}, TTL: time.Minute}
	a := join(t, "a", cfg)
	a.ready()
	restore := s.backup()
	b := join(t, "b", cfg)
	ofB := b.ready()
	a.Used([]peer.Usage{{Block: a.ready()[0], Size: 254, Used: 254}})
	eventually(t, "a has grown", func() bool { return len(a.now().Blocks) == 3 })
	ofA := a.ready()
	restore()
	began := time.Now()
	client := s.client("", "")
	eventually(t, "what was lost is there again", func() bool {
		resp, err := client.Get(t.Context(), "/husk/default/blocks/", clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 5
	})
	t.Logf("all claims were there again after %v", time.Since(began))
	if !slices.Equal(a.ready(), ofA) || !slices.Equal(b.ready(), ofB) {
		t.Errorf("a had %v, has %v; b had %v, has %v", ofA, a.ready(), ofB, b.ready())
	}
	eventually(t, "the records are there again", func() bool { return len(a.now().Peers) == 1 && len(b.now().Peers) == 1 })
	// For a minute, no block is claimed for the first time.
	b.Used([]peer.Usage{{Block: ofB[0], Size: 254, Used: 254}})
	b.noted("the store lost its latest changes")
	if _, err := client.Delete(t.Context(), "/husk/default/settling"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b has grown", func() bool { return len(b.now().Blocks) == 3 })
}

// TestCompacted: what changed while the connection was broken is seen, though it was compacted.
func TestCompacted(t *testing.T) {
	t.Parallel()
	s := start(t)
	p := s.proxy()
	a := join(t, "a", etcd.Config{Endpoints: []string{p.url}})
	a.ready()
	p.set(true)
	b := join(t, "b", etcd.Config{Endpoints: []string{s.url}})
	ofB := b.ready()
	client := s.client("", "")
	resp, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if len(a.now().Peers) > 0 {
		t.Error("the connection wasn't cut")
	}
	p.set(false)
	eventually(t, "a sees b", func() bool {
		peers := a.now().Peers
		return len(peers) == 1 && slices.Equal(peers[0].Blocks, slices.SortedFunc(slices.Values(ofB), netip.Prefix.Compare))
	})
}

// TestQuorumLost: nodes go on with their blocks, and say why they get no answer.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	members := startMembers(t, 3)
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.url)
	}
	a := join(t, "a", etcd.Config{Endpoints: endpoints})
	ofA := a.ready()
	members[0].kill()
	a.Used([]peer.Usage{{Block: ofA[0], Size: 254, Used: 254}})
	eventually(t, "a has grown with two of three members", func() bool { return len(a.now().Blocks) == 3 })
	members[1].kill()
	a.Used([]peer.Usage{{Block: ofA[0], Size: 254, Used: 254}, {Block: a.now().Blocks[2], Size: 254, Used: 254}})
	a.noted("stays in force")
	for _, b := range ofA {
		if err := a.May(b); err != nil {
			t.Error(err)
		}
	}
	if err := a.Status(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("status is %v", err)
	}
	members[0].run()
	eventually(t, "a has grown again", func() bool { return len(a.now().Blocks) == 4 && a.Status() == nil })
}

// fails checks that a store's calls fail with one line.
func fails(t *testing.T, s *etcd.Store, want string) {
	t.Helper()
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { _, errs[0] = s.Keep(t.Context(), "", nil) })
	wg.Go(func() { errs[1] = s.Follow(t.Context(), func(claim.Snapshot) { t.Error("Follow told something") }) })
	wg.Wait()
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want one line with %q", err, want)
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	s := start(t)
	root := s.client("", "")
	for _, c := range []struct{ user, role string }{{"root", "root"}, {"husk", "husk"}, {"stranger", "none"}} {
		if _, err := root.RoleAdd(t.Context(), c.role); err != nil {
			t.Fatal(err)
		}
		if _, err := root.UserAdd(t.Context(), c.user, "secret"); err != nil {
			t.Fatal(err)
		}
		if _, err := root.UserGrantRole(t.Context(), c.user, c.role); err != nil {
			t.Fatal(err)
		}
	}
	prefix := "/husk/default/"
	if _, err := root.RoleGrantPermission(t.Context(), "husk", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	if _, err := root.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	endpoints := []string{s.url}
	fails(t, open(t, etcd.Config{Endpoints: endpoints, Username: "husk", Password: "wrong"}), `authentication of user "husk" failed: check the user name and the password`)
	// Without a name, some calls are allowed.
	anonymous := open(t, etcd.Config{Endpoints: endpoints})
	if err := anonymous.Follow(t.Context(), func(claim.Snapshot) {}); err == nil || !strings.Contains(err.Error(), "wants a user name") {
		t.Errorf("without a name: %v", err)
	}
	stranger := open(t, etcd.Config{Endpoints: endpoints, Username: "stranger", Password: "secret"})
	if err := stranger.Follow(t.Context(), func(claim.Snapshot) {}); err == nil || !strings.Contains(err.Error(), `user "stranger" may not read and write the keys /husk/default/`) {
		t.Errorf("without a permission: %v", err)
	}
	a := join(t, "a", etcd.Config{Endpoints: endpoints, Username: "husk", Password: "secret"})
	a.ready()
}

// TestUnreachable: the error says what is wrong with the connection.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	closed := fmt.Sprintf("http://127.0.0.1:%d", ports(t, 1)[0])
	fails(t, open(t, etcd.Config{Endpoints: []string{closed}}), "connection refused")
}

func TestQuotaReached(t *testing.T) {
	t.Parallel()
	s := start(t, "--quota-backend-bytes", "2000000")
	a := join(t, "a", etcd.Config{Endpoints: []string{s.url}})
	ofA := a.ready()
	client := s.client("", "")
	for i := 0; ; i++ {
		if _, err := client.Put(t.Context(), fmt.Sprint("x", i), strings.Repeat("x", 500_000)); err != nil {
			break
		}
	}
	a.Used([]peer.Usage{{Block: ofA[0], Size: 254, Used: 254}})
	a.noted("its database has reached its quota")
	if err := a.May(ofA[0]); err != nil {
		t.Error(err)
	}
}

// TestStrangersKeys: what can't be read is named and left alone, and what may be a block isn't
// claimed.
func TestStrangersKeys(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.client("", "")
	for key, value := range map[string]string{
		"nodes/bad":                 "{",
		"nodes/liar":                `{"v":1,"node":"honest","addresses":["192.0.2.9"],"blocks":[]}`,
		"nodes/loop":                `{"v":1,"node":"loop","addresses":["127.0.0.1"],"blocks":[]}`,
		"blocks/10.201.0.0-24":      `{"node":"x"}`, // not padded
		"blocks/010.201.000.001-24": `{"node":"x"}`,
		"blocks/":                   "",
		"blocks/010.201.000.000-17": "reserved for printers",
		"new/feature":               "1",
	} {
		if _, err := client.Put(t.Context(), "/husk/default/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	a := join(t, "a", etcd.Config{Endpoints: []string{s.url}})
	reserved := netip.MustParsePrefix("10.201.0.0/17")
	for _, b := range a.ready() {
		if b.Overlaps(reserved) {
			t.Errorf("the node claimed %v", b)
		}
	}
	for _, note := range []string{"/nodes/bad: record: ", "/nodes/liar: record of node honest under another", "/nodes/loop: ", "/blocks/10.201.0.0-24 is not the key of a block",
		"/blocks/010.201.000.001-24 is not", "/blocks/ is not", "/new/feature is not a key of this version"} {
		a.noted("/husk/default" + note)
	}
	if peers := a.now().Peers; len(peers) > 0 {
		t.Errorf("peers are %v", peers)
	}
}

// TestTooManyBlocks: a node that claims more blocks than a record may have isn't routed to at all,
// whatever it writes into its record, and one that claims as many is.
func TestTooManyBlocks(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.client("", "")
	session, err := client.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := client.Put(t.Context(), "/husk/default/"+key, value, clientv3.WithLease(session.ID)); err != nil {
			t.Fatal(err)
		}
	}
	claim := func(i int) {
		t.Helper()
		put(fmt.Sprintf("blocks/010.201.%03d.000-24", i), `{"node":"greedy"}`)
	}
	put("nodes/greedy", `{"v":1,"node":"greedy","addresses":["192.0.2.9"],"blocks":["10.201.200.0/24"]}`)
	for i := range peer.MaxBlocks {
		claim(i)
	}
	a := join(t, "a", etcd.Config{Endpoints: []string{s.url}})
	a.ready()
	accept := func() ([]*peer.Node, []string) {
		self := a.announced
		self.Version, self.Name = peer.Version, a.name
		return peer.Accept([]netip.Prefix{netip.MustParsePrefix("10.201.0.0/16")}, self, a.now().Peers)
	}
	peers, notes := accept()
	if len(peers) != 1 || len(peers[0].Blocks) != peer.MaxBlocks || len(notes) > 0 || slices.Contains(peers[0].Blocks, netip.MustParsePrefix("10.201.200.0/24")) {
		t.Errorf("peers %v, notes %v, want one with the blocks that it has claimed", peers, notes)
	}
	claim(peer.MaxBlocks)
	eventually(t, "the node is refused", func() bool { peers, notes = accept(); return len(notes) > 0 })
	if len(peers) > 0 || !slices.Equal(notes, []string{"record of node greedy: 65 blocks: at most 64"}) {
		t.Errorf("peers %v, notes %v", peers, notes)
	}
	var blocks []string
	for i := range peer.MaxBlocks + 1 {
		blocks = append(blocks, fmt.Sprintf(`"10.201.%d.0/24"`, i))
	}
	put("nodes/greedy", `{"v":1,"node":"greedy","addresses":["192.0.2.9"],"blocks":[`+strings.Join(blocks, ",")+`]}`)
	a.noted("/husk/default/nodes/greedy: record of node greedy: 65 blocks: at most 64")
}

// TestTLS: with a private authority and client certificates.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, caKey := certificate(t, dir, "ca", nil, nil)
	certificate(t, dir, "server", ca, caKey)
	certificate(t, dir, "client", ca, caKey)
	certificate(t, dir, "other", nil, nil)
	file := func(name string) string { return filepath.Join(dir, name) }
	s := start(t, "--cert-file", file("server.crt"), "--key-file", file("server.key"), "--trusted-ca-file", file("ca.crt"), "--client-cert-auth")
	cfg := etcd.Config{Endpoints: []string{s.url}, CA: file("ca.crt"), Cert: file("client.crt"), Key: file("client.key")}
	join(t, "a", cfg).ready()

	stranger, anonymous := cfg, cfg
	stranger.CA = file("other.crt")
	anonymous.Cert, anonymous.Key = "", ""
	fails(t, open(t, stranger), "certificate signed by unknown authority")
	fails(t, open(t, anonymous), "certificate")
}

// certificate writes a key and a certificate of an authority, or of one for itself.
func certificate(t *testing.T, dir, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: ca == nil,
	}
	if ca == nil {
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// TestSlow: a node whose messages to and from etcd take 2.4 s gets its blocks and keeps them, also
// with TLS and a user name.
func TestSlow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, caKey := certificate(t, dir, "ca", nil, nil)
	certificate(t, dir, "server", ca, caKey)
	file := func(name string) string { return filepath.Join(dir, name) }
	s := start(t, "--cert-file", file("server.crt"), "--key-file", file("server.key"))
	admin := s.trusting(file("ca.crt"))
	for _, err := range []error{
		errOf(admin.RoleAdd(t.Context(), "root")), errOf(admin.UserAdd(t.Context(), "root", "secret")), errOf(admin.UserGrantRole(t.Context(), "root", "root")), errOf(admin.AuthEnable(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const delay, ttl = 2400 * time.Millisecond, time.Minute
	a := join(t, "a", etcd.Config{Endpoints: []string{s.slow(delay).url}, CA: file("ca.crt"), Username: "root", Password: "secret", TTL: ttl})
	usable := func() bool {
		blocks := a.now().Blocks
		return len(blocks) >= 2 && !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return a.May(b) != nil })
	}
	for end := time.Now().Add(3 * time.Minute); !usable(); time.Sleep(100 * time.Millisecond) { // eight answers take 40 s
		if time.Now().After(end) {
			t.Fatalf("no blocks after three minutes: %+v, %v", a.now(), a.Status())
		}
	}
	// It can use its blocks for longer than the TTL only if it prolongs its claims.
	for end := time.Now().Add(ttl + 10*time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, b := range a.now().Blocks {
			if err := a.May(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Status(); err != nil {
			t.Fatal(err)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		cfg  etcd.Config
		want string
	}{
		{etcd.Config{}, "no etcd endpoints"},
		{etcd.Config{Endpoints: []string{"192.0.2.1:2379"}}, "want a URL like"},
		{etcd.Config{Endpoints: []string{"https://192.0.2.1:2379", "http://127.0.0.1:2379"}}, "some are http and some https"},
		{etcd.Config{Endpoints: []string{"http://127.0.0.1:2379"}, Cluster: "a/b"}, "cluster name"},
		{etcd.Config{Endpoints: []string{"http://127.0.0.1:2379"}, TTL: time.Second}, "at least 2s"},
		{etcd.Config{Endpoints: []string{"https://127.0.0.1:2379"}, CA: "/nonexistent"}, "certificate authority"},
		{etcd.Config{Endpoints: []string{"https://127.0.0.1:2379"}, Cert: "/nonexistent", Key: "/nonexistent"}, "this node's certificate"},
	} {
		if _, err := etcd.New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}
