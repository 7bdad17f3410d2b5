package export

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/huskd/husk/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink is a collector that keeps the spans.
type sink struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string]*tracepb.Span
	node  string
}

func (s *sink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "host.name" {
				s.node = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.spans[span.GetName()] = span
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func serve(t *testing.T) (*sink, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, server := &sink{spans: map[string]*tracepb.Span{}}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return s, "http://" + listener.Addr().String()
}

func TestCalls(t *testing.T) {
	s, endpoint := serve(t)
	tracer, err := New(t.Context(), Config{Endpoint: endpoint, Sampling: 1, Node: "n1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	from := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	_, err = tracer.unary(from, nil, &grpc.UnaryServerInfo{FullMethod: "/a.Service/Call"}, func(ctx context.Context, _ any) (any, error) {
		_, span := trace.Start(ctx, "stage")
		span.End(nil)
		return nil, status.Error(codes.NotFound, "none")
	})
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	broken := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", strings.Repeat("x", 1000)))
	err = tracer.stream(nil, stream{ctx: broken}, &grpc.StreamServerInfo{FullMethod: "/a.Service/Watch"}, func(_ any, st grpc.ServerStream) error {
		_, span := trace.Start(st.Context(), "watching")
		span.End(nil)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	_, end := tracer.Begin(t.Context(), "deed", trace.PodName, "web")
	end(nil)
	tracer.Close()
	call, stage, watch, watching := s.spans["a.Service/Call"], s.spans["stage"], s.spans["a.Service/Watch"], s.spans["watching"]
	if call == nil || stage == nil || watch == nil || watching == nil || s.spans["deed"] == nil {
		t.Fatalf("the spans are %v", s.spans)
	}
	if string(stage.GetParentSpanId()) != string(call.GetSpanId()) || string(watching.GetParentSpanId()) != string(watch.GetSpanId()) {
		t.Error("a stage is not a child of its call")
	}
	if len(call.GetParentSpanId()) == 0 || len(watch.GetParentSpanId()) != 0 {
		t.Error("the caller's span is lost, or a malformed one is used")
	}
	if call.GetKind() != tracepb.Span_SPAN_KIND_SERVER || call.GetStatus().GetMessage() != "none" || s.node != "n1" {
		t.Errorf("the call is %v on node %q", call, s.node)
	}
}

// TestSampling checks that a caller's decision overrides the configured sampling.
func TestSampling(t *testing.T) {
	s, endpoint := serve(t)
	tracer, err := New(t.Context(), Config{Endpoint: endpoint, Sampling: 0, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for name, flag := range map[string]string{"/s/Asked": "01", "/s/Declined": "00", "/s/Silent": ""} {
		ctx := t.Context()
		if flag != "" {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"+flag))
		}
		_, _ = tracer.unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: name}, func(context.Context, any) (any, error) { return nil, nil })
	}
	tracer.Close()
	if len(s.spans) != 1 || s.spans["s/Asked"] == nil {
		t.Errorf("the spans are %v", s.spans)
	}
}

// TestUnreachableCollector checks that neither calls nor Close wait for an unreachable
// collector.
func TestUnreachableCollector(t *testing.T) {
	var log strings.Builder
	tracer, err := New(t.Context(), Config{Endpoint: "http://127.0.0.1:1", Sampling: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = tracer.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/Call"}, func(context.Context, any) (any, error) { return nil, nil })
	tracer.Close()
}

func TestOff(t *testing.T) {
	var tracer *Tracer
	ctx, end := tracer.Begin(t.Context(), "deed")
	end(nil)
	tracer.Close()
	if ctx != t.Context() || tracer.Options() != nil {
		t.Error("something is traced")
	}
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }
