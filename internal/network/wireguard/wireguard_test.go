package wireguard_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/companion"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/wireguard"
)

// recorded has the private keys that were told last.
type recorded []peer.Key

func (r *recorded) set(private ...peer.Key) { *r = private }

func TestKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "network", "wireguard")
	var private recorded
	open := func() *wireguard.Keys {
		t.Helper()
		k, err := wireguard.OpenKeys(file, private.set)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	// state returns the public keys of both links, after the private ones were found to be theirs.
	state := func(k *wireguard.Keys) (first, second peer.Key) {
		t.Helper()
		first, second = k.Public()
		for i, want := range []peer.Key{first, second} {
			if want != (peer.Key{}) && (len(private) <= i || peer.Key(wgtypes.Key(private[i]).PublicKey()) != want) {
				t.Errorf("the private keys don't belong to %v and %v", first, second)
			}
		}
		return first, second
	}
	k := open()
	old, none := state(k)
	if none != (peer.Key{}) {
		t.Errorf("in the beginning, the second link has the key %v", none)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	k = open()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file after a restart: %v, %v", info.Mode(), err)
	}
	step := func(name string, act func(*wireguard.Keys) error, check func(first, second peer.Key) bool) {
		t.Helper()
		for _, again := range []string{"", ", once more", ", after a restart"} {
			if again != ", after a restart" {
				if err := act(k); err != nil {
					t.Fatal(err)
				}
			} else {
				k = open()
			}
			if first, second := state(k); !check(first, second) {
				t.Errorf("%s%s: the keys are %v and %v, before %v", name, again, first, second, old)
			}
		}
	}
	var made peer.Key
	step("begin", (*wireguard.Keys).Begin, func(first, second peer.Key) bool {
		same := made == (peer.Key{}) || made == second
		made = second
		return same && first == old && second != old && second != peer.Key{}
	})
	step("switch", (*wireguard.Keys).Switch, func(first, second peer.Key) bool { return first == made && second == made })
	step("end", (*wireguard.Keys).End, func(first, second peer.Key) bool { return first == made && second == peer.Key{} })
	step("switch without begin", (*wireguard.Keys).Switch, func(first, second peer.Key) bool { return first == made && second == peer.Key{} })
	if files, err := filepath.Glob(file + "*"); err != nil || len(files) != 1 {
		t.Errorf("in the end there are the files %v, %v", files, err)
	}
	if err := os.WriteFile(file, []byte("no key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := wireguard.OpenKeys(file, private.set); err == nil || !strings.Contains(err.Error(), "remove it, and huskd makes another") {
		t.Errorf("a damaged file: %v", err)
	}
}

func build(t *testing.T) string {
	t.Helper()
	hosttest.Root(t)
	path := filepath.Join(t.TempDir(), wireguard.Program)
	if out, err := exec.Command("go", "build", "-o", path, "github.com/huskd/husk/cmd/"+wireguard.Program).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// TestStart connects two namespaces by two links of the program, and deletes one link.
func TestStart(t *testing.T) {
	program := build(t)
	wg, err := wgctrl.New()
	if err != nil {
		t.Fatal(err)
	}
	defer wg.Close()
	var paths, links [2]string
	var keys [2]wgtypes.Key
	for i := range paths {
		paths[i], links[i] = filepath.Join(t.TempDir(), "net"), fmt.Sprintf("hwt%d%c", os.Getpid(), 'a'+i)
		netnstest.Make(t, paths[i])
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			t.Fatal(err)
		}
	}
	netnstest.IP(t, paths[0], "link add eth0 type veth peer name eth0 netns "+paths[1])
	const port = 51820
	for i, path := range paths {
		netnstest.IP(t, path, fmt.Sprintf("address add 192.0.2.%d/24 dev eth0", i+1))
		netnstest.IP(t, path, "link set eth0 up")
		if err := netns.Do(path, func() error { return companion.Start(nil, program, links[i], "1440") }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = netnstest.Try(path, "ip", "link", "del", links[i]) })
		listen := port
		_, all, _ := net.ParseCIDR("10.201.0.0/16")
		if err := wg.ConfigureDevice(links[i], wgtypes.Config{PrivateKey: &keys[i], ListenPort: &listen, Peers: []wgtypes.PeerConfig{{
			PublicKey: keys[1-i].PublicKey(), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, byte(2-i)), Port: port}, AllowedIPs: []net.IPNet{*all},
		}}}); err != nil {
			t.Fatal(err)
		}
		netnstest.IP(t, path, fmt.Sprintf("address add 10.201.%d.1/16 dev %s", i+1, links[i]))
		netnstest.IP(t, path, "link set "+links[i]+" up")
	}
	netnstest.Run(t, paths[0], "ping", "-c", "2", "-i", "0.2", "-s", "1412", "-M", "do", "-W", "5", "10.201.2.1")
	if show := netnstest.IP(t, paths[0], "link show "+links[0]); !strings.Contains(show, "mtu 1440") {
		t.Errorf("the link is %s", show)
	}

	if err := netns.Do(paths[1], func() error { return companion.Start(nil, program, links[1], "1440") }); err == nil || !strings.Contains(err.Error(), links[1]) {
		t.Errorf("a second program for the link: %v", err)
	}
	for i, path := range paths {
		netnstest.IP(t, path, "link del "+links[i])
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if left := programs(t, links[i]); left == "" {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("the link is gone and the program is left:%s", left)
			}
		}
		if _, err := os.Stat("/var/run/wireguard/" + links[i] + ".sock"); err == nil {
			t.Errorf("the socket of %s is left", links[i])
		}
	}
}

// programs returns the PIDs of programs that were started for a link.
func programs(t *testing.T, link string) (pids string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if text, _ := os.ReadFile(line); strings.Contains(string(text), wireguard.Program+"\x00"+link) {
			pids += " " + strings.Split(line, "/")[2]
		}
	}
	return pids
}
