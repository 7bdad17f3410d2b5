package nodes

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/node"
)

const flannelConfig = `{"Network":"10.201.0.0/16","EnableIPv6":true,"IPv6Network":"fd68:7573:6b01::/48","Backend":{"Type":"vxlan"}}`

// call calls etcd's gateway for JSON.
func (e *etcd) call(method string, request map[string]string, into any) error {
	encoded := map[string]string{}
	for name, value := range request {
		encoded[name] = base64.StdEncoding.EncodeToString([]byte(value))
	}
	body, err := json.Marshal(encoded)
	if err != nil {
		return err
	}
	out, err := e.on.Command(e.t.Context(), "curl", "-sSf", e.url()+"/v3/kv/"+method, "-d", string(body)).Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(out, into)
}

// leases returns flannel's keys below /coreos.com/network/subnets/.
func (e *etcd) leases() (out []string) {
	e.t.Helper()
	var answer struct{ KVs []struct{ Key []byte } }
	const prefix = "/coreos.com/network/subnets/"
	if err := e.call("range", map[string]string{"key": prefix, "range_end": "/coreos.com/network/subnets0"}, &answer); err != nil {
		e.t.Fatal(err)
	}
	for _, kv := range answer.KVs {
		out = append(out, strings.TrimPrefix(string(kv.Key), prefix))
	}
	return out
}

// TestFlannel runs nodes of Husk in a flannel network. If HUSK_TEST_FLANNELD is the path of a
// flanneld, there is a node with it, too.
func TestFlannel(t *testing.T) {
	hosttest.Program(t, "curl")
	u := node.NewUnderlay(t)
	near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
	nodes := []*machine{newMachine(t, near), newMachine(t, near), newMachine(t, far)}
	flanneld := os.Getenv("HUSK_TEST_FLANNELD")
	var other *machine
	if flanneld != "" {
		other = newMachine(t, far)
	}
	store := startEtcd(t, nodes[0])
	node.Eventually(t, time.Minute, func() string {
		if err := store.call("put", map[string]string{"key": "/coreos.com/network/config", "value": flannelConfig}, &struct{}{}); err != nil {
			return fmt.Sprint("write flannel's configuration: ", err)
		}
		return ""
	})
	for _, m := range nodes {
		m.flags = node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "flannel", "--etcd-endpoints", store.url(), "--etcd-insecure",
			"--node-name", m.Uplink.Name())
	}
	start(t, nodes...)
	for _, m := range nodes {
		m.run("a")
	}
	Reach(t, 30*time.Second, nodes...)
	leases := store.leases()
	for _, m := range nodes {
		for _, a := range m.pods[0].addresses {
			of, _ := a.Prefix(24)
			key := of.Addr().String() + "-24"
			if a.Is6() {
				of, _ = a.Prefix(64)
				key = of.Addr().String() + "-64"
			}
			if !slices.ContainsFunc(leases, func(lease string) bool { return slices.Contains(strings.Split(lease, "&"), key) }) {
				t.Errorf("pod address %v of node %s isn't in a lease: %v", a, m.Uplink.Name(), leases)
			}
		}
	}
	if len(leases) != len(nodes) {
		t.Errorf("leases %v, want one for each node", leases)
	}
	if other != nil {
		withFlanneld(t, other, flanneld, store, nodes)
	}
	store.stop()
	remove(t, nodes...)
}

// withFlanneld runs flanneld on a node, and sends between its pods and those of all others.
func withFlanneld(t *testing.T, m *machine, flanneld string, store *etcd, nodes []*machine) {
	env := filepath.Join(t.TempDir(), "subnet.env")
	cmd := m.Command(t.Context(), flanneld, "--etcd-endpoints", store.url(), "--iface", m.Uplink.Addresses[0].Addr().String(), "--subnet-file", env, "--iptables-forward-rules=false")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Cancel()
		_ = cmd.Wait()
		m.Run("ip", "link", "delete", "flannel.1")
		m.Run("ip", "link", "delete", "flannel-v6.1")
	}()
	var pods []netip.Addr // addresses of the node itself stand for them
	node.Eventually(t, time.Minute, func() string {
		text, err := os.ReadFile(env)
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); strings.HasSuffix(name, "SUBNET") {
				pods = append(pods, netip.MustParsePrefix(value).Addr())
			}
		}
		return ""
	})
	if len(pods) != 2 {
		t.Fatalf("flanneld has the subnets %v", pods)
	}
	for _, pod := range pods {
		m.Must("ip", "address", "add", netip.PrefixFrom(pod, pod.BitLen()).String(), "dev", "lo")
		defer m.Must("ip", "address", "delete", netip.PrefixFrom(pod, pod.BitLen()).String(), "dev", "lo")
	}
	for _, other := range nodes {
		for _, pod := range pods {
			from := other.pods[0].address(pod.Is6())
			node.Eventually(t, 30*time.Second, func() string {
				if out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+other.pods[0].netns, "ping", "-c1", "-W2", "-s1300", pod.String()).CombinedOutput(); err != nil {
					return fmt.Sprintf("no answer of flanneld's pod %v to pod %v: %s", pod, from, out)
				}
				if r := m.Run("ping", "-c1", "-W2", "-s1300", "-I", pod.String(), from.String()); r.Code != 0 {
					return fmt.Sprintf("no answer of pod %v to flanneld's pod %v: %s", from, pod, r.Stdout+r.Stderr)
				}
				return ""
			})
		}
	}
}
