package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/test/node"
)

// wipe makes etcd as if it had never run, or as it was when its data was copied to a directory.
func (e *etcd) wipe(saved string) {
	e.t.Helper()
	err := os.RemoveAll(e.dir)
	if err == nil && saved != "" {
		err = os.CopyFS(e.dir, os.DirFS(saved))
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// save copies etcd's data, and returns where to.
func (e *etcd) save() string {
	e.t.Helper()
	e.stop()
	saved := e.t.TempDir()
	if err := os.CopyFS(saved, os.DirFS(e.dir)); err != nil {
		e.t.Fatal(err)
	}
	e.start()
	return saved
}

// client returns a client of etcd.
func (e *etcd) client() *clientv3.Client {
	e.t.Helper()
	dial := func(ctx context.Context, address string) (c net.Conn, err error) {
		return c, netns.Do(e.on.Net(), func() error {
			if c, err = new(net.Dialer).DialContext(ctx, "tcp", address); err != nil {
				return err
			}
			return c.(*net.TCPConn).SetLinger(0) // what waits for an answer would keep the namespace
		})
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.url()}, Logger: zap.NewNop(), DialTimeout: 20 * time.Second, DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)}})
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

// has waits until etcd has the records of some nodes and two blocks of each, and returns the
// blocks' keys and values.
func (e *etcd) has(names ...string) (blocks []string) {
	e.t.Helper()
	client := e.client()
	defer client.Close()
	node.Eventually(e.t, 2*time.Minute, func() string {
		ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Second)
		defer cancel()
		resp, err := client.Get(ctx, "/husk/default/", clientv3.WithRange("/husk/default/workloads/"))
		if err != nil {
			return err.Error()
		}
		blocks = nil
		found := map[string]int{}
		for _, kv := range resp.Kvs {
			if name, ok := strings.CutPrefix(string(kv.Key), "/husk/default/nodes/"); ok {
				found[name]++
			} else if strings.HasPrefix(string(kv.Key), "/husk/default/blocks/") {
				var holder struct{ Node string }
				_ = json.Unmarshal(kv.Value, &holder)
				found[holder.Node]++
				blocks = append(blocks, fmt.Sprintf("%s %s", kv.Key, kv.Value))
			}
		}
		for _, name := range names {
			if found[name] < 3 {
				return fmt.Sprintf("etcd doesn't have node %s and two blocks of it: %s", name, blocks)
			}
		}
		return ""
	})
	return blocks
}

// empty deletes what nodes have written.
func (e *etcd) empty() {
	e.t.Helper()
	client := e.client()
	defer client.Close()
	if _, err := client.Delete(e.t.Context(), "/husk/", clientv3.WithPrefix()); err != nil {
		e.t.Fatal(err)
	}
}

// TestStoreLoses: whatever etcd loses of what nodes have written into it, no packet between pods is
// lost, also not from and to a node that can't reach etcd all the time. The others write into etcd
// again what that node has, so that a node that joins knows it and gets none of its blocks.
func TestStoreLoses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		away time.Duration // of etcd
		cut  bool
		lose func(e *etcd, saved string)
	}{
		{"Wiped", 0, true, func(e *etcd, _ string) { e.wipe("") }},
		{"Restored", 0, true, func(e *etcd, saved string) { e.wipe(saved) }},
		{"Deleted", 0, true, nil},
		// Long enough that waits which grow without a bound would keep nodes away for as long
		// again.
		{"AwayAndWiped", time.Minute, false, func(e *etcd, _ string) { e.wipe("") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := node.NewUnderlay(t)
			near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
			nodes := []*machine{newMachine(t, near), newMachine(t, far), newMachine(t, near)}
			late, on := newMachine(t, far), newMachine(t, far)
			// etcd's connections to a node that is cut off would keep its namespace for minutes.
			netnstest.Set(t, on.Net(), "net/ipv4/tcp_retries2", "3")
			on.endOrphans()
			store := startEtcd(t, on)
			for _, m := range append(nodes, late) {
				m.Binary("husk-wireguard")
				m.flags = node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
					"--node-name", m.Uplink.Name())
			}
			start(t, nodes[:2]...)
			for _, m := range nodes[:2] {
				m.run("a")
			}
			saved := ""
			if c.name == "Restored" { // to when the third node didn't exist
				saved = store.save()
			}
			away := nodes[2]
			start(t, away)
			away.run("a")
			Reach(t, time.Minute, nodes...)
			names := []string{nodes[0].Uplink.Name(), nodes[1].Uplink.Name(), away.Uplink.Name()}
			store.has(names...)
			streams := (&cluster{t: t, nodes: nodes}).streams()

			if c.cut {
				u.Filter(away.Node, on.Node, "tcp dport 2379", "tcp sport 2379")
			}
			if c.lose == nil {
				store.empty()
			} else {
				store.stop()
				for end := time.Now().Add(c.away); time.Now().Before(end); {
					streams[0].after(t, 500)
				}
				c.lose(store, saved)
				store.start()
			}
			blocks := store.has(names...)
			for sent := int64(0); sent < 50_000; {
				streams[0].after(t, 500)
				sent = 0
				for _, s := range streams {
					sent += s.sent.Load()
				}
			}
			lost(t, c.name, 0, streams)
			node.Eventually(t, 10*time.Second, func() string {
				var all string
				for _, m := range nodes { // the last one to reach etcd may miss nothing there
					all += m.MustHusk("events")
				}
				if !strings.Contains(all, "NodeStoreLoss") {
					return "husk events don't say that etcd has lost something:\n" + all
				}
				return ""
			})

			start(t, late)
			late.run("a")
			all := append(nodes, late)
			Reach(t, time.Minute, append([]*machine{late}, nodes[:2]...)...)
			now := store.has(late.Uplink.Name())
			if missing := slices.DeleteFunc(blocks, func(b string) bool { return slices.Contains(now, b) }); len(missing) > 0 {
				t.Errorf("with another node, etcd no longer has %s: %s", missing, now)
			}
			if c.cut {
				u.Heal(away.Node, on.Node)
			}
			away.run("b")
			Reach(t, time.Minute, all...)
			for _, m := range all {
				node.Eventually(t, time.Minute, func() string {
					if r := m.Husk("net", "nodes"); r.Stderr != "" || strings.Count(r.Stdout, "\n") != 5 {
						return "node " + m.Uplink.Name() + " says\n" + r.Stdout + r.Stderr
					}
					return ""
				})
			}
			store.stop()
			remove(t, all...)
		})
	}
}
