// Package trace tells where the time of a call goes, as spans of OpenTelemetry.
//
// A span is found through the context: where nothing began one, because tracing
// is not configured or the call is not sampled, Start costs a look at the
// context and allocates nothing. Whoever begins the first is package export.
package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// The names of attributes that tell what a span is about. Those that
// OpenTelemetry has words for are its.
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

// Span is what a stage takes. Nil is one that nobody asked for.
type Span struct{ span oteltrace.Span }

// Start begins a span below that of ctx, and returns the context of what is done
// within. About has names and values in turn.
func Start(ctx context.Context, name string, about ...string) (context.Context, *Span) {
	above := oteltrace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return ctx, nil
	}
	tracer := above.TracerProvider().Tracer("github.com/huskd/husk")
	ctx, span := tracer.Start(ctx, name, oteltrace.WithAttributes(Attributes(about)...))
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

// Note adds what the innermost span of ctx is about: names and values in turn.
func Note(ctx context.Context, about ...string) {
	if span := oteltrace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(Attributes(about)...)
	}
}

// Follow returns ctx, whose end it keeps, with the span of from: for work that
// goes on when who asked for it has left.
func Follow(ctx, from context.Context) context.Context {
	span := oteltrace.SpanFromContext(from)
	if !span.IsRecording() {
		return ctx
	}
	return oteltrace.ContextWithSpan(ctx, span)
}

// Attributes are names and values in turn as OpenTelemetry has them. Empty
// values are left out.
func Attributes(about []string) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, len(about)/2)
	for i := 0; i+1 < len(about); i += 2 {
		if about[i+1] != "" {
			list = append(list, attribute.String(about[i], about[i+1]))
		}
	}
	return list
}
