package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/dns/nameserver"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/connlimit"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMetrics(t *testing.T) {
	m := New(Sources{
		Sandboxes: func() iter.Seq[*sandbox.Status] {
			return slices.Values([]*sandbox.Status{{State: sandboxstate.Ready}, {State: sandboxstate.Ready}})
		},
		Containers: func() iter.Seq[*container.Status] {
			return slices.Values([]*container.Status{{State: containerstate.Exited}})
		},
		Images:  func() []image.Image { return []image.Image{{Size: 40}, {Size: 2}} },
		Refused: func() int { return 3 },
		Debts:   func() int { return 7 },
		Dropped: func() ([]network.Dropped, error) {
			return []network.Dropped{{Why: datapath.Spoofed, Count: 9}}, nil
		},
		Nodes: func() nodes.Status {
			return nodes.Status{Unsummed: []string{"hn0b5evx"}, Peers: []nodes.Peer{
				{Name: "b", Way: backend.VXLAN, Health: heartbeat.Health{Answered: true, RTT: 2 * time.Millisecond, Loss: 0.25}}, {Name: "c"},
			}}
		},
		Tracked: func() (network.Connections, error) {
			return network.Connections{Size: conntrack.Size{Entries: 900, Max: 1000}, Refused: make([]connlimit.Refusal, 2), Dropped: 70}, nil
		},
		Names: func() nameserver.Usage { return nameserver.Usage{Answers: 11, Dropped: 13} },
		Policy: func() (r firewall.Report) {
			for i := range maxCombinations {
				end := firewall.End{Policies: []string{fmt.Sprintf("policy %03d", i)}, Restricted: true, Denied: 5}
				for range 2 { // pods with the same policies
					r.Pods = append(r.Pods, firewall.Pod{Ingress: end, Egress: end})
				}
			}
			return r
		},
	})
	m.SandboxStep(pod.Step{Name: "pin", Took: time.Millisecond}, nil)
	m.SandboxStep(pod.Step{Name: "attach", Took: time.Minute}, errors.New("no address"))
	m.ContainerStep(pod.Step{Name: "mount"}, nil)
	m.Plugin(cni.Run{Network: "lab", Plugin: "bridge", Op: "ADD", Took: 40 * time.Millisecond})
	m.Plugin(cni.Run{Network: "lab", Plugin: "bridge", Op: "DEL", Err: errors.New("gone")})
	m.Pull(2*time.Second, nil)
	m.Pull(0, errors.New("denied"))
	refusal := status.Error(codes.NotFound, "none")
	_, err := m.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/Version"}, func(context.Context, any) (any, error) { return nil, refusal })
	if !errors.Is(err, refusal) {
		t.Error(err)
	}
	if err := m.Stream(nil, nil, &grpc.StreamServerInfo{FullMethod: "/husk.v1.Husk/Logs"}, func(any, grpc.ServerStream) error { return nil }); err != nil {
		t.Error(err)
	}
	page := scrape(t, m)
	for _, line := range []string{
		`husk_sandboxes{state="ready"} 2`, `husk_containers{state="exited"} 1`, "husk_images 2", "husk_image_bytes 42", "husk_manifest_problems 3", "husk_network_debts 7", `husk_network_dropped_packets_total{reason="spoofed"} 9`,
		"husk_conntrack_entries 900", "husk_conntrack_entries_limit 1000", "husk_conntrack_refused_pods 2", "husk_conntrack_refused_packets_total 70",
		"husk_dns_questions_total 11", "husk_dns_limited_total 13",
		`husk_network_nodes{way="vxlan"} 1`, `husk_network_nodes{way="none"} 1`, `husk_network_node_rtt_seconds{node="b"} 0.002`, `husk_network_node_loss_ratio{node="b"} 0.25`, `husk_network_checksum_offload_disabled{link="hn0b5evx"} 1`,
		`husk_network_policy_denied_packets_total{direction="ingress",policies="policy 000"} 5`, `husk_network_policy_denied_packets_total{direction="egress",policies="other"} 250`,
		`husk_step_seconds_count{of="sandbox",step="pin"} 1`, `husk_step_seconds_bucket{of="sandbox",step="pin",le="0.001"} 1`,
		`husk_step_seconds_count{of="container",step="mount"} 1`, `husk_step_failures_total{of="sandbox",step="attach"} 1`,
		`husk_cni_seconds_count{network="lab",op="ADD",plugin="bridge"} 1`, `husk_cni_failures_total{network="lab",op="DEL",plugin="bridge"} 1`,
		"husk_pull_seconds_count 1", "husk_pull_failures_total 1", `husk_call_seconds_count{code="OK",method="Logs",service="husk.v1.Husk"} 1`,
		`husk_call_seconds_count{code="NotFound",method="Version",service="runtime.v1.RuntimeService"} 1`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no line %s in\n%s", line, page)
		}
	}
}

// TestOfNode: a node's metrics are those of huskd and the kubelet's.
func TestOfNode(t *testing.T) {
	m := New(Sources{
		Sandboxes:  func() iter.Seq[*sandbox.Status] { return slices.Values([]*sandbox.Status{}) },
		Containers: func() iter.Seq[*container.Status] { return slices.Values([]*container.Status{}) },
		Images:     func() []image.Image { return nil }, Refused: func() int { return 0 }, Debts: func() int { return 7 }, Dropped: func() ([]network.Dropped, error) { return nil, nil }, Nodes: func() nodes.Status { return nodes.Status{} },
		Policy:  func() firewall.Report { return firewall.Report{} },
		Tracked: func() (network.Connections, error) { return network.Connections{}, nil },
	})
	ended := 0
	begin := m.Begin(func(ctx context.Context, _ string, _ ...string) (context.Context, func(error)) {
		return ctx, func(error) { ended++ }
	})
	for name, err := range map[string]error{"agent/CreateSandbox": nil, "agent/StartContainer": errors.New("no file"), "agent/Other": nil} {
		_, end := begin(t.Context(), name)
		end(err)
	}
	w := httptest.NewRecorder()
	node := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_running_pods"})
	m.OfNode(node).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	page := w.Body.String()
	for _, line := range []string{
		"husk_network_debts 7", "kubelet_running_pods 0", `kubelet_runtime_operations_total{operation_type="run_podsandbox"} 1`,
		`kubelet_runtime_operations_errors_total{operation_type="start_container"} 1`, `kubelet_runtime_operations_duration_seconds_count{operation_type="start_container"} 1`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no line %s in\n%s", line, page)
		}
	}
	if ended != 3 || strings.Contains(scrape(t, m), "kubelet_") {
		t.Errorf("%d spans ended", ended)
	}
}

// scrape serves the metrics on a free port and returns the page.
func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + listener.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}
