package nodes

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// connects reports whether a TCP connection from one host to another is established at once.
func (h *host) connects(to *host, six bool) bool {
	err := netns.Do(h.netns, func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(to.address(six).String(), fmt.Sprint(echoPort)), 500*time.Millisecond)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	return err == nil
}

// TestPolicy: without an API server, a node's policies know the labels of other nodes' pods by
// etcd, also of pods whose names its own have.
func TestPolicy(t *testing.T) {
	segment := node.NewUnderlay(t).Segment(node.Media{})
	a, b := newMachine(t, segment), newMachine(t, segment)
	store := startEtcd(t, a)
	manifests := filepath.Join(b.Dir, "manifests")
	if err := os.Mkdir(manifests, 0o700); err != nil {
		t.Fatal(err)
	}
	flags := func(m *machine, more ...string) node.Option {
		return node.Flags(append([]string{"--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
			"--node-name", m.Uplink.Name()}, more...)...)
	}
	a.flags, b.flags = flags(a), flags(b, "--manifests", manifests)
	start(t, a, b)
	friend, stranger := a.run("friend"), a.run("stranger")
	db := b.run("db")
	Reach(t, 30*time.Second, a, b)
	// judged checks for some time that the friend may connect and the stranger may not.
	judged := func(when string) {
		t.Helper()
		for _, six := range []bool{false, true} {
			for range 3 {
				if !friend.connects(db, six) {
					t.Errorf("%s: the friend may not connect, IPv6 %v\n%s", when, six, b.MustHusk("net", "policy", "db"))
				}
				if stranger.connects(db, six) {
					t.Errorf("%s: the stranger may connect, IPv6 %v", when, six)
				}
			}
		}
	}
	text := `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
`
	if err := os.WriteFile(filepath.Join(manifests, "policy.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, 30*time.Second, func() string {
		if !friend.connects(db, false) || stranger.connects(db, false) {
			return "the policy isn't in force"
		}
		return ""
	})
	judged("with the policy")
	b.run("friend") // of the same name, and on the policy's own node
	judged("with a namesake")
	a.huskd.Kill()
	judged("without huskd")
	store.stop()
	b.huskd.Kill()
	b.restart()
	judged("without the store")
	store.start()
	a.restart()
	late := a.run("late")
	node.Eventually(t, 30*time.Second, func() string {
		if late.connects(db, false) {
			t.Fatal("a pod that no rule allows may connect")
		}
		if !friend.connects(db, false) {
			return "the friend may not connect"
		}
		return ""
	})
	judged("with the store again")
	store.stop()
	remove(t, a, b)
}
