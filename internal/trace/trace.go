// Package trace records where the time of a call goes, as OpenTelemetry spans.
//
// Spans are passed in the context. Package export starts the first span of a call. If it
// doesn't, because tracing is not configured or the call is not sampled, Start only looks
// at the context and allocates nothing.
package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Names of span attributes, from OpenTelemetry's semantic conventions where those have one.
const (
	PodNamespace  = "k8s.pod.namespace"
	PodName       = "k8s.pod.name"
	PodUID        = "k8s.pod.uid"
	Sandbox       = "husk.sandbox.id"
	Container     = "container.id"
	ContainerName = "k8s.container.name"
	Image         = "container.image.name"
	Network       = "husk.network"
	Plugin        = "husk.cni.plugin"
)

// Span is a span of a stage. A nil Span records nothing.
type Span struct{ span oteltrace.Span }

// Start starts a child of ctx's span and returns a context with it. attributes alternates
// names and values.
func Start(ctx context.Context, name string, attributes ...string) (context.Context, *Span) {
	parent := oteltrace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	tracer := parent.TracerProvider().Tracer("github.com/huskd/husk")
	ctx, span := tracer.Start(ctx, name, oteltrace.WithAttributes(Attributes(attributes)...))
	return ctx, &Span{span}
}

// End ends the span; an error marks it as failed.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// Follow returns ctx with the span of from. It is for work that continues after from has
// ended.
func Follow(ctx, from context.Context) context.Context {
	span := oteltrace.SpanFromContext(from)
	if !span.IsRecording() {
		return ctx
	}
	return oteltrace.ContextWithSpan(ctx, span)
}

// Attributes converts alternating names and values to OpenTelemetry attributes. It omits
// empty values.
func Attributes(pairs []string) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			list = append(list, attribute.String(pairs[i], pairs[i+1]))
		}
	}
	return list
}
