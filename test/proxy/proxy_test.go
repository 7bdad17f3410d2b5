// Package proxy compares what huskd does for Services with kube-proxy in its nftables mode, with
// the same API server, node, clients and endpoints, in network namespaces of the test.
package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/balancer"
	"github.com/huskd/husk/internal/network/service/accept"
	"github.com/huskd/husk/internal/network/service/apisource"
	"github.com/huskd/husk/internal/network/servicetable"
	"github.com/huskd/husk/internal/pod"
)

const (
	instance = pod.Instance("be0f")
	// kubeconfigVariable is set in the process that leads connections as huskd does.
	kubeconfigVariable = "HUSK_TEST_PROXY_KUBECONFIG"
	// kubeProxyVariable is the path of kube-proxy.
	kubeProxyVariable = "HUSK_BENCH_KUBE_PROXY"
)

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(kubeconfigVariable); kubeconfig != "" {
		if err := lead(kubeconfig); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// lead does what huskd does for Services, until the process is killed.
func lead(kubeconfig string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	client, err := cluster.New(kubeconfig, log)
	if err != nil {
		return err
	}
	table, err := servicetable.Open("", instance, nil)
	if err != nil {
		return err
	}
	source := &apisource.Source{
		Connect: func(context.Context) (*cluster.Client, error) { return client, nil }, Node: "node",
		Mistaken: func(p accept.Problem) { log.Warn(p.String()) },
	}
	return balancer.New(balancer.Config{Source: source, Kernel: table, Log: log}).Run(context.Background())
}

// lab is a node between a pod and the endpoints.
type lab struct {
	tb             testing.TB
	node, pod, far string
	api            *clustertest.Server
	leader         *exec.Cmd
	first          netip.AddrPort
}

const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	nodesPath    = "/api/v1/nodes"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newLab(tb testing.TB, n int) *lab {
	tb.Helper()
	hosttest.Root(tb)
	dir := tb.TempDir()
	l := &lab{tb: tb, node: filepath.Join(dir, "node"), pod: filepath.Join(dir, "pod"), far: filepath.Join(dir, "far")}
	l.first = netip.AddrPortFrom(clusterIP(0), 80)
	for _, ns := range []string{l.node, l.pod, l.far} {
		netnstest.Make(tb, ns)
		netnstest.IP(tb, ns, "link set lo up")
	}
	netnstest.Set(tb, l.node, "net/ipv4/ip_forward", "1")
	for link, peer := range map[string]struct{ ns, address string }{"hkbe0fpod": {l.pod, "10.88.0.2"}, "up0": {l.far, "10.99.0.1"}} {
		netnstest.IP(tb, l.node, "link add "+link+" type veth peer name eth0 netns "+peer.ns)
		for _, line := range []string{"addr add 169.254.1.1/32 dev " + link, "link set " + link + " up", "route add " + peer.address + " dev " + link} {
			netnstest.IP(tb, l.node, line)
		}
		for _, line := range []string{"addr add " + peer.address + "/32 dev eth0", "link set eth0 up", "route add 169.254.1.1 dev eth0", "route add default via 169.254.1.1"} {
			netnstest.IP(tb, peer.ns, line)
		}
	}
	netnstest.IP(tb, l.node, "addr add 192.168.0.1/32 dev up0")
	netnstest.IP(tb, l.node, "route add default dev up0")
	for _, port := range []uint16{8080, 8081} {
		l.serve(netip.AddrPortFrom(netip.MustParseAddr("10.99.0.1"), port))
	}
	must(tb, netns.Do(l.node, func() error {
		l.api = clustertest.New(tb)
		return nil
	}))
	l.api.Put(nodesPath, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}}},
	})
	for i := range n {
		l.api.Put(servicesPath, serviceOf(i))
		l.api.Put(slicesPath, sliceOf(i, 8080))
	}
	return l
}

func clusterIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

func serviceOf(i int) *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("s", i)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP(i).String(), ClusterIPs: []string{clusterIP(i).String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// sliceOf has ten endpoints, but that of the first Service one, which serves.
func sliceOf(i int, port int32) *discoveryv1.EndpointSlice {
	yes, name, protocol, node := true, "", corev1.ProtocolTCP, "elsewhere"
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("s", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
	for j := range 10 {
		k := 10*i + j
		address := netip.AddrFrom4([4]byte{10, byte(100 + k>>16), byte(k >> 8), byte(k)}).String()
		if i == 0 {
			address = "10.99.0.1"
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}})
		if i == 0 {
			break
		}
	}
	return slice
}

// serve answers a connection's first byte with the port, until the test ends.
func (l *lab) serve(at netip.AddrPort) {
	l.tb.Helper()
	must(l.tb, netns.Do(l.far, func() error {
		listener, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		l.tb.Cleanup(func() { listener.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if _, err := c.Read(make([]byte, 1)); err == nil {
						_, _ = fmt.Fprint(c, at.Port())
					}
				}()
			}
		}()
		return nil
	}))
}

// ask makes a transaction with a Service in the current network namespace: connect, request,
// response. It returns the endpoint's port.
func ask(to netip.AddrPort, timeout time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", to.String(), timeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT, so that ports don't run out
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("x")); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// inPod calls fn in the pod's network namespace.
func (l *lab) inPod(fn func() error) {
	l.tb.Helper()
	must(l.tb, netns.Do(l.pod, fn))
}

// await asks until the endpoint with a port answers.
func (l *lab) await(port string) {
	l.tb.Helper()
	l.inPod(func() error {
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
			got, err := ask(l.first, 20*time.Millisecond)
			if err == nil && got == port {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("port %s doesn't answer: %q, %w", port, got, err)
			}
		}
	})
}

// start starts what leads connections, as a process in the node's network namespace.
func (l *lab) start(kind string) {
	l.tb.Helper()
	args := []string{"/proc/self/exe", "-test.run", "^$"}
	env := kubeconfigVariable + "=" + l.api.Kubeconfig
	if kind == "kube-proxy" {
		path := filepath.Join(l.tb.TempDir(), "config.yaml")
		must(l.tb, os.WriteFile(path, fmt.Appendf(nil, `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s, qps: 1000, burst: 1000}
hostnameOverride: node
mode: nftables
clusterCIDR: 10.88.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
`, l.api.Kubeconfig), 0o600))
		args = []string{os.Getenv(kubeProxyVariable), "--config", path}
		env = "KUBE_FEATURE_WatchListClient=false" // the API server of the test has only list and watch
	} else if self, err := os.Executable(); err == nil {
		args[0] = self
	}
	l.leader = exec.Command("nsenter", append([]string{"--net=" + l.node}, args...)...)
	l.leader.Env = append(os.Environ(), env)
	log, err := os.Create(filepath.Join(l.tb.TempDir(), "log"))
	must(l.tb, err)
	l.leader.Stdout, l.leader.Stderr = log, log
	must(l.tb, l.leader.Start())
	process := l.leader
	l.tb.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		_ = log.Close()
		if l.tb.Failed() {
			text, _ := os.ReadFile(log.Name())
			l.tb.Logf("%s: %s", kind, text[max(0, len(text)-4000):])
		}
	})
}

var resident = regexp.MustCompile(`(?m)^Pss:\s+(\d+) kB`)

// memory returns the PSS of what leads connections, in MB.
func (l *lab) memory() float64 {
	l.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", l.leader.Process.Pid))
	must(l.tb, err)
	found := resident.FindStringSubmatch(string(text))
	if found == nil {
		l.tb.Fatalf("no memory in %s", text)
	}
	kb, err := strconv.ParseFloat(found[1], 64)
	must(l.tb, err)
	return kb / 1000
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}

// BenchmarkServices measures both with 1, 1,000 and 10,000 Services: the first load from the start
// of the process, a transaction of a new connection, the time from a changed endpoint until
// connections lead there, and memory.
func BenchmarkServices(b *testing.B) {
	for _, kind := range []string{"husk", "kube-proxy"} {
		for _, n := range []int{1, 1000, 10_000} {
			b.Run(kind+"/"+strconv.Itoa(n), func(b *testing.B) {
				if kind == "kube-proxy" && os.Getenv(kubeProxyVariable) == "" {
					b.Skip("set " + kubeProxyVariable)
				}
				l := newLab(b, n)
				began := time.Now()
				l.start(kind)
				l.await("8080")
				loaded := time.Since(began)
				var changes, transactions []time.Duration
				failed := 0
				for i := range 10 {
					port := int32(8080 + (i+1)%2)
					began := time.Now()
					l.api.Put(slicesPath, sliceOf(0, port))
					l.await(strconv.Itoa(int(port)))
					changes = append(changes, time.Since(began))
				}
				l.inPod(func() error {
					for b.Loop() {
						began := time.Now()
						if _, err := ask(l.first, 5*time.Second); err != nil {
							failed++
						}
						transactions = append(transactions, time.Since(began))
					}
					return nil
				})
				b.ReportMetric(float64(loaded.Milliseconds()), "load-ms")
				b.ReportMetric(median(changes), "change-ms")
				b.ReportMetric(1000*median(transactions), "crr-us-p50")
				b.ReportMetric(l.memory(), "memory-MB")
				b.ReportMetric(float64(failed), "failed")
			})
		}
	}
}

// TestClusterServicesAreLed is the benchmark's lab once, without kube-proxy.
func TestClusterServicesAreLed(t *testing.T) {
	l := newLab(t, 20)
	l.start("husk")
	l.await("8080")
	l.api.Put(slicesPath, sliceOf(0, 8081))
	l.await("8081")
	if out := netnstest.Run(t, l.node, "nft", "list", "ruleset"); !strings.Contains(out, "addr4-all-10") {
		t.Errorf("the rules of ten endpoints are missing:\n%s", out)
	}
}
