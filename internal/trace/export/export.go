// Package export begins the spans of huskd's calls, samples them, and sends them
// and those below them to a collector by OTLP over gRPC.
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

// Config says where spans go.
type Config struct {
	// Endpoint is a collector's URL, http://HOST:PORT or https://HOST:PORT.
	Endpoint string
	// Sampling is the share of calls that are traced of those whose caller
	// doesn't say, 0 to 1. A caller's word goes before.
	Sampling float64
	// Node is this node's name.
	Node string
	Log  *slog.Logger
}

// Tracer begins spans. Nil is one that doesn't.
type Tracer struct {
	provider *sdk.TracerProvider
	exporter sdk.SpanExporter
	tracer   oteltrace.Tracer
}

// New returns a tracer, whether the collector answers or not: spans that it
// doesn't take are dropped and pods don't wait for it.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("tracing to %s: %w", cfg.Endpoint, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		cfg.Log.Warn("tracing: spans were not taken", "collector", cfg.Endpoint, "error", err)
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

// closeTime is how long the last spans may take to be sent.
const closeTime = 2 * time.Second

// Close sends what is left.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // what can't be sent was told of
	_ = t.exporter.Shutdown(ctx)
}

// Begin begins a span that nobody's call is above, such as that of something the
// agent does. About has names and values in turn.
func (t *Tracer) Begin(ctx context.Context, name string, about ...string) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.tracer.Start(ctx, name, oteltrace.WithAttributes(trace.Attributes(about)...))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// Options are a server's whose calls are traced; none if nothing is.
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

// traced is a stream whose context has a span.
type traced struct {
	grpc.ServerStream
	ctx context.Context
}

// Context replaces the stream's own.
func (t traced) Context() context.Context { return t.ctx }

// serve begins the span of a call, below that of its caller if it tells of one.
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

// carrier is gRPC's metadata as W3C's trace context is read from it.
type carrier metadata.MD

// Get returns the first value.
func (c carrier) Get(key string) string {
	if list := metadata.MD(c).Get(key); len(list) > 0 {
		return list[0]
	}
	return ""
}

// Set is for those who send.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys are all names.
func (c carrier) Keys() []string {
	var keys []string
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}
