package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// spanCollector is an OpenTelemetry collector that keeps the spans it receives.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
}

// Export implements TraceServiceServer.
func (s *spanCollector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			s.spans = append(s.spans, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// in returns the spans of a trace by path: the names of their ancestors and their own.
func (s *spanCollector) in(trace string) (paths []string, by map[string]*tracepb.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids, by := map[string]*tracepb.Span{}, map[string]*tracepb.Span{}
	for _, span := range s.spans {
		if hex.EncodeToString(span.GetTraceId()) == trace {
			ids[string(span.GetSpanId())] = span
		}
	}
	for _, span := range ids {
		path := span.GetName()
		for above := ids[string(span.GetParentSpanId())]; above != nil; above = ids[string(above.GetParentSpanId())] {
			path = above.GetName() + " > " + path
		}
		paths = append(paths, path)
		by[path] = span
	}
	slices.Sort(paths)
	return paths, by
}

func attribute(span *tracepb.Span, key string) string {
	for _, kv := range span.GetAttributes() {
		if kv.GetKey() == key {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// serveCollector serves a collector on the node's loopback.
func serveCollector(t *testing.T, n *node.Node) (*spanCollector, string) {
	t.Helper()
	var listener net.Listener
	if err := netns.Do(n.Net(), func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	c, server := &spanCollector{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c, listener.Addr().String()
}

// TestTracing checks that a caller's trace contains each call, and each stage as a descendant of
// the call.
func TestTracing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	serveRegistry(t, n)
	spans, address := serveCollector(t, n)
	conf := `{"cniVersion":"1.0.0","name":"lab","plugins":[{"type":"husk-cni","subnet":"10.78.0.0/24","dataDir":"` + filepath.Join(n.Dir, "cni-data") + `"}]}`
	if err := os.MkdirAll(n.CNI, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.CNI, "10-lab.conflist"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(n.Dir, "huskd.toml")
	// Only calls with a traceparent are traced.
	if err := os.WriteFile(config, fmt.Appendf(nil, "[tracing]\nendpoint = \"http://%s\"\nsampling = 0\n", address), 0o644); err != nil {
		t.Fatal(err)
	}
	c := serveCRI(t, n, node.Flags("--config", config))
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	plain := c.ctx
	c.ctx = metadata.AppendToOutgoingContext(plain, "traceparent", "00-"+trace+"-"+parent+"-01")
	c.pull(webImage)
	pod := c.pod()
	id := c.run(pod, forever)
	refused := c.podConfig(func(p *runtimeapi.PodSandboxConfig) {
		p.Annotations["k8s.v1.cni.cncf.io/networks"] = "none-such"
	})
	_, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: refused})
	fails(t, err, codes.InvalidArgument, "none-such")
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
	c.ctx = plain
	c.must(ignore(c.Version(c.ctx, &runtimeapi.VersionRequest{})))

	const service = "runtime.v1.RuntimeService/"
	want := []string{
		"runtime.v1.ImageService/PullImage > image/pull > image/assemble",
		"runtime.v1.ImageService/PullImage > image/pull > image/resolve",
		service + "RunPodSandbox > sandbox/pin",
		service + "RunPodSandbox > sandbox/attach > cni/ADD",
		service + "CreateContainer > container/mount",
		service + "CreateContainer > container/create",
		service + "StartContainer > container/start",
		service + "RemovePodSandbox > sandbox/kill",
		service + "RemovePodSandbox > sandbox/detach > cni/DEL",
		service + "RemovePodSandbox > sandbox/unpin",
	}
	var by map[string]*tracepb.Span
	node.Eventually(t, 30*time.Second, func() string {
		var paths []string
		paths, by = spans.in(trace)
		for _, path := range want {
			if !slices.Contains(paths, path) {
				return fmt.Sprintf("no span %s among\n%s", path, strings.Join(paths, "\n"))
			}
		}
		return ""
	})
	run := by[service+"RunPodSandbox"]
	if got := hex.EncodeToString(run.GetParentSpanId()); got != parent {
		t.Errorf("the parent of RunPodSandbox is %s, not the caller's span", got)
	}
	add := by[service+"RunPodSandbox > sandbox/attach > cni/ADD"]
	if attribute(add, "husk.cni.plugin") != "husk-cni" || attribute(add, "husk.sandbox.id") == "" {
		t.Errorf("the attributes of the plugin's span are %v", add.GetAttributes())
	}
	start := by[service+"StartContainer > container/start"]
	if attribute(start, "container.id") != id || attribute(start, "k8s.pod.namespace") != "default" || attribute(start, "husk.sandbox.id") != pod {
		t.Errorf("the attributes of the start's span are %v", start.GetAttributes())
	}
	failed := false
	for _, span := range spans.all() {
		failed = failed || span.GetName() == "sandbox/attach" && span.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR
		if hex.EncodeToString(span.GetTraceId()) != trace {
			t.Errorf("%s is traced, though no caller requested it", span.GetName())
		}
	}
	if !failed {
		t.Error("no span has the error of the failed attachment")
	}
	log := c.huskd.Log()
	for _, words := range []string{"call=RuntimeService/RunPodSandbox", "pod=default/" + refused.GetMetadata().GetName(), "sandbox=", "stage=attach"} {
		if !slices.ContainsFunc(strings.Split(log, "\n"), func(line string) bool {
			return strings.Contains(line, "a call failed") && strings.Contains(line, words)
		}) {
			t.Errorf("no log line of a failed call has %s:\n%s", words, log)
		}
	}
	c.huskd.Stop()
	cleanHuskCNI(n)
	n.NothingLeft()
}

func (s *spanCollector) all() []*tracepb.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.spans)
}
