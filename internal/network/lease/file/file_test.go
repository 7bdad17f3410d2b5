package file

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node returns the table of node n<i>.
func node(i int) string {
	return fmt.Sprintf("[[node]]\nname = \"n%d\"\naddresses = [\"192.0.2.%d\"]\nblocks = [\"10.201.%d.0/24\"]\n", i, i, i)
}

func nodes(of ...int) string {
	var b strings.Builder
	for _, i := range of {
		b.WriteString(node(i))
	}
	return b.String()
}

func TestParse(t *testing.T) {
	got, err := parse([]byte(node(2) + `
# With everything.
[[node]]
name = "n1"
addresses = ["192.0.2.1", "2001:db8::1"]
blocks = ["10.201.1.0/24", "fd68::/64"]
mtu = 9000
vxlan = {vni = 7, port = 4789, mac = "02:00:00:00:00:01"}
ipip = true
wireguard = [{key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="}]
encrypted = true
as = 64512
`))
	if err != nil {
		t.Fatal(err)
	}
	full := peer.Node{Version: 1, Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		Blocks: []netip.Prefix{netip.MustParsePrefix("10.201.1.0/24"), netip.MustParsePrefix("fd68::/64")}, MTU: 9000,
		VXLAN: &peer.VXLAN{VNI: 7, Port: 4789, MAC: peer.MAC{2, 0, 0, 0, 0, 1}}, IPIP: true,
		WireGuard: []peer.WireGuard{{Key: peer.Key(bytes.Repeat([]byte{1}, 32)), Port: peer.WireGuardPort}}, Encrypted: true, AS: 64512}
	short := peer.Node{Version: 1, Name: "n2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
		Blocks: []netip.Prefix{netip.MustParsePrefix("10.201.2.0/24")}, VXLAN: backend.VXLANOf("n2")}
	if len(got) != 2 || !got[0].Equal(full) || !got[1].Equal(short) {
		t.Errorf("got %+v", got)
	}
}

// TestParseNamesTheLine checks that each mistake is on its line, with what to do.
func TestParseNamesTheLine(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"empty", "", "1: it has no nodes: add a [[node]]"},
		{"half a table", nodes(1) + "[[no", "5: "},
		{"half a string", nodes(1) + "[[node]]\nname = \"n", "6: "},
		{"unknown key", nodes(1) + "adress = \"x\"\n", "5: unknown key node.adress"},
		{"unknown table", "[nodes]\n", "1: unknown key nodes"},
		{"type", nodes(1) + "mtu = \"big\"\n", "5: "},
		{"address", strings.Replace(nodes(1, 2), "192.0.2.2", "192.0.2", 1), "7: "},
		{"block", strings.Replace(nodes(1, 2), "10.201.2.0/24", "10.201.2.0", 1), "8: "},
		{"no subnet", strings.Replace(nodes(1, 2), "10.201.2.0/24", "10.201.2.1/24", 1), "5: record of node n2: block 10.201.2.1/24 is not a subnet"},
		{"mac", nodes(1) + "vxlan = {mac = \"01:00:00:00:00:01\"}\n", "5: "},
		{"key", nodes(1) + "wireguard = [{key = \"x\"}]\n", "5: "},
		{"no name", nodes(1) + "[[node]]\naddresses = [\"192.0.2.9\"]\n", "5: record of node \"\": not a name"},
		{"no address", nodes(1) + "\n\n [[ node ]] # n9\nname = \"n9\"\n", "7: node n9 has no addresses"},
		{"name twice", nodes(1, 2, 1), "9: node n1 is already on line 1: give one"},
		{"address twice", strings.Replace(nodes(1, 2), "192.0.2.2", "192.0.2.1", 1), "5: node n2 has address 192.0.2.1 of node n1 on line 1: give one"},
		{"overlap", strings.Replace(nodes(1, 2), "10.201.1.0/24", "10.201.0.0/16", 1), "5: block 10.201.2.0/24 of node n2 overlaps block 10.201.0.0/16 of node n1 on line 1: give one"},
		{"inline", "node = [{name = \"n1\"}]", "1: node n1 has no addresses"},
	} {
		_, err := parse([]byte(c.file))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// FuzzParse checks that what parse accepts can't harm a node, and that it locates what it refuses.
func FuzzParse(f *testing.F) {
	f.Add([]byte(nodes(1, 2)))
	f.Add([]byte("node = [{name = \"a\", addresses = [\"192.0.2.1\"]}]"))
	f.Add([]byte(nodes(1) + "vxlan = {}\nwireguard = [{key = \"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\", port = 1}]\n"))
	f.Add([]byte("[[node]]\nname = 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		nodes, err := parse(data)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				var at int
				if _, scan := fmt.Sscanf(line, "%d: ", &at); scan != nil || at < 1 || at > bytes.Count(data, []byte("\n"))+1 {
					t.Errorf("not located in the file: %s", line)
				}
			}
			return
		}
		var blocks []netip.Prefix
		for _, n := range nodes {
			if err := n.Check(); err != nil {
				t.Error(err)
			}
			for _, b := range n.Blocks {
				if slices.ContainsFunc(blocks, b.Overlaps) {
					t.Errorf("accepted overlapping blocks %v %v", blocks, b)
				}
				blocks = append(blocks, b)
			}
		}
		if !slices.IsSortedFunc(nodes, func(a, b *peer.Node) int { return strings.Compare(a.Name, b.Name) }) {
			t.Error("not in the order of names")
		}
	})
}

// followed is a registry that runs, of node n1.
type followed struct {
	*Registry
	t    *testing.T
	mu   sync.Mutex
	view *peer.View
	log  bytes.Buffer
}

func (f *followed) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(p)
}

func follow(t *testing.T, path string) *followed {
	f := &followed{t: t}
	f.Registry = New(path, "n1", slog.New(slog.NewTextHandler(f, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- f.Run(ctx, func(v peer.View) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.view = &v
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// expect waits for a view with these peers, and notes that contain these texts.
func (f *followed) expect(peers string, notes ...string) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		f.mu.Lock()
		good, state := f.is(peers, notes)
		f.mu.Unlock()
		if good {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("want peers %q and notes %q, got %s", peers, notes, state)
		}
	}
}

func (f *followed) is(peers string, notes []string) (good bool, state string) {
	if f.view == nil {
		return false, "no view; log:\n" + f.log.String()
	}
	var names []string
	for _, p := range f.view.Peers {
		names = append(names, p.Name)
	}
	good = strings.Join(names, " ") == peers && len(notes) == len(f.view.Notes)
	for i := range notes {
		good = good && strings.Contains(f.view.Notes[i], notes[i])
	}
	return good, fmt.Sprintf("%v, notes %q", names, f.view.Notes)
}

func (f *followed) expectLog(text string) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		f.mu.Lock()
		log := f.log.String()
		f.mu.Unlock()
		if strings.Contains(log, text) {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("the log doesn't say %q:\n%s", text, log)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

var block1, block2 = netip.MustParsePrefix("10.201.1.0/24"), netip.MustParsePrefix("10.201.2.0/24")

func TestFollowsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes.toml")
	write(t, path, nodes(1, 3, 2))
	f := follow(t, path)
	f.expect("n2 n3")
	if got := f.view.Blocks; !slices.Equal(got, []netip.Prefix{block1}) {
		t.Errorf("own blocks %v", got)
	}
	if err := f.May(block1); err != nil {
		t.Error(err)
	}
	if err := f.May(block2); err == nil || !strings.Contains(err.Error(), "block 10.201.2.0/24 isn't of node n1 in "+path) {
		t.Errorf("n2's block: %v", err)
	}
	write(t, path, nodes(1, 2))
	f.expect("n2")
	// As editors replace a file.
	write(t, path+".new", nodes(1, 2, 3, 4))
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	f.expect("n2 n3 n4")
	write(t, path, nodes(2, 3))
	f.expect("n2 n3", "has no node n1")
	if err := f.May(block1); err == nil {
		t.Error("a block that the file doesn't have may be used")
	}
	write(t, path, nodes(2)+"[[node]]\nname = \"n1\"\naddresses = [\"192.0.2.1\"]\n")
	f.expect("n2", "node n1 has no blocks")
	if err := f.May(netip.Prefix{}); err == nil || !strings.Contains(err.Error(), path+" has no such blocks of node n1: add them") {
		t.Errorf("why there is no block: %v", err)
	}
}

// TestFaultChangesNothing checks that nodes stay when the file is malformed, half written, gone,
// or something else than a file.
func TestFaultChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes.toml")
	write(t, path, nodes(1, 2))
	f := follow(t, path)
	f.expect("n2")
	for _, c := range []struct{ content, note string }{
		{nodes(1, 2) + "[[node]]\nname = \"n3", path + ":10: "},
		{"", path + ":1: it has no nodes"},
		{strings.Repeat("#", maxFile+1), path + ": larger than 4 MiB"},
		{nodes(2) + "a = 1\nb = 2\n", path + ":5: unknown key node.a; " + path + ":6: unknown key node.b"},
	} {
		write(t, path, c.content)
		f.expect("n2", c.note)
		if err := f.May(block1); err != nil {
			t.Error(err)
		}
	}
	write(t, path, nodes(1, 2)) // as before
	f.expect("n2")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.expect("n2", path+": no such file")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f.expect("n2", path+": not a regular file")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, nodes(1, 2, 3))
	f.expect("n2 n3")
}

// TestNoViewBeforeTheFile checks that there is no view, which would say that all nodes have left,
// before the file can be read, and that it is noticed when its directory appears or is replaced.
func TestNoViewBeforeTheFile(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b")
	path := filepath.Join(dir, "nodes.toml")
	f := follow(t, path)
	f.expectLog("no such file")
	if err := f.May(block1); err == nil || !strings.Contains(err.Error(), path+": no such file") {
		t.Errorf("before the file: %v", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, path, "[[node")
	f.expectLog(path + ":1: ")
	f.mu.Lock()
	if f.view != nil {
		t.Errorf("view %+v of no file", f.view)
	}
	f.mu.Unlock()
	write(t, path, nodes(1, 2))
	f.expect("n2")
	if err := os.Rename(filepath.Join(top, "a"), filepath.Join(top, "was")); err != nil {
		t.Fatal(err)
	}
	f.expect("n2", "no such file")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, path, nodes(1, 3))
	f.expect("n3")
}

func TestNotesWhatTheNodeIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes.toml")
	key := bytes.Repeat([]byte{1}, 32)
	write(t, path, nodes(1)+"ipip = true\nvxlan = {vni = 7}\n"+nodes(2)+"wireguard = [{key = \"AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\"}]\n")
	f := follow(t, path)
	f.expect("n2")
	is := peer.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}, VXLAN: backend.VXLANOf("n1"), WireGuard: []peer.WireGuard{{Key: peer.Key(key), Port: 51820}}}
	f.Announce(peer.Node{Addresses: is.Addresses})
	f.Announce(is)
	f.expect("n2", "node n1 in "+path+": address 192.0.2.1, but this node has [192.0.2.77]", "remove the table vxlan", "remove ipip",
		`it needs wireguard = [{key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", port = 51820}]`)
	is.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	write(t, path, nodes(1, 2))
	f.Announce(is)
	f.expect("n2")
}
