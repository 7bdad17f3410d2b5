// Package export starts and samples the spans of huskd's calls, and sends them with their
// child spans to a collector by OTLP over gRPC.
package export

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/huskd/husk/internal/trace"
	"github.com/huskd/husk/internal/version"
)

// Config configures a Tracer.
type Config struct {
	// Endpoint is a collector's URL, http://HOST:PORT or https://HOST:PORT.
	Endpoint string
	// Sampling is the fraction of calls to trace, 0 to 1. It applies to calls whose caller
	// doesn't decide that.
	Sampling float64
	// Node is this node's name.
	Node string
	Log  *slog.Logger
}

// Tracer starts spans. A nil Tracer starts none.
type Tracer struct {
	provider *sdk.TracerProvider
	exporter sdk.SpanExporter
	tracer   oteltrace.Tracer
}

// New returns a Tracer. The collector need not be reachable: spans that can't be sent are
// dropped, and calls never wait for it.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("tracing to %s: %w", cfg.Endpoint, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		cfg.Log.Warn("tracing: spans could not be sent", "collector", cfg.Endpoint, "error", err)
	}))
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Sampling))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "huskd"), attribute.String("service.version", version.Version), attribute.String("host.name", cfg.Node),
		)),
	)
	return &Tracer{provider, exporter, provider.Tracer("github.com/huskd/husk")}, nil
}

// closeTimeout is how long Close waits for the last spans to be sent.
const closeTimeout = 2 * time.Second

// Close sends the remaining spans.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the error handler logs errors
	_ = t.exporter.Shutdown(ctx)
}

// Begin starts a root span, for work of the agent rather than a call. attributes alternates
// names and values.
func (t *Tracer) Begin(ctx context.Context, name string, attributes ...string) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.tracer.Start(ctx, name, oteltrace.WithAttributes(trace.Attributes(attributes)...))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// Options returns the options for a server whose calls are traced.
func (t *Tracer) Options() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(t.unary), grpc.ChainStreamInterceptor(t.stream)}
}

func (t *Tracer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, span := t.serve(ctx, info.FullMethod)
	answer, err := next(ctx, req)
	finish(span, err)
	return answer, err
}

func (t *Tracer) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, span := t.serve(stream.Context(), info.FullMethod)
	err := next(srv, traced{stream, ctx})
	finish(span, err)
	return err
}

// traced is a stream with a span in its context.
type traced struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context with the span.
func (t traced) Context() context.Context { return t.ctx }

// serve starts the span of a call, as a child of the caller's span if the call carries one.
func (t *Tracer) serve(ctx context.Context, method string) (context.Context, oteltrace.Span) {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = propagation.TraceContext{}.Extract(ctx, carrier(md))
	}
	name := strings.TrimPrefix(method, "/")
	service, call, _ := strings.Cut(name, "/")
	return t.tracer.Start(ctx, name, oteltrace.WithSpanKind(oteltrace.SpanKindServer), oteltrace.WithAttributes(
		attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", call),
	))
}

func finish(span oteltrace.Span, err error) {
	s := status.Convert(err)
	span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(s.Code())))
	if err != nil {
		span.SetStatus(codes.Error, s.Message())
	}
	span.End()
}

// carrier reads a W3C trace context from gRPC metadata.
type carrier metadata.MD

// Get returns the first value of key.
func (c carrier) Get(key string) string {
	if list := metadata.MD(c).Get(key); len(list) > 0 {
		return list[0]
	}
	return ""
}

// Set sets a value, for callers.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys returns all keys.
func (c carrier) Keys() []string {
	var keys []string
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}
