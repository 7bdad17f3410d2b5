package trace

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestParents(t *testing.T) {
	to := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(to))
	ctx, root := provider.Tracer("test").Start(t.Context(), "call")
	ctx, outer := Start(ctx, "stage", Sandbox, "s1", Plugin, "")
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	detached := Follow(context.Background(), ctx)
	if detached.Err() != nil {
		t.Error("the following context ends with its origin")
	}
	_, inner := Start(detached, "step")
	inner.End(errors.New("no space"))
	outer.End(nil)
	root.End()
	spans := to.GetSpans()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want 3", len(spans))
	}
	step, stage, call := spans[0], spans[1], spans[2]
	if step.Parent.SpanID() != stage.SpanContext.SpanID() || stage.Parent.SpanID() != call.SpanContext.SpanID() {
		t.Error("the spans are not nested")
	}
	if step.Status.Code != codes.Error || step.Status.Description != "no space" || stage.Status.Code == codes.Error {
		t.Errorf("the errors are %v and %v", step.Status, stage.Status)
	}
	if len(stage.Attributes) != 1 || stage.Attributes[0].Value.AsString() != "s1" {
		t.Errorf("the attributes are %v", stage.Attributes)
	}
}

func TestNoSpanWithoutParent(t *testing.T) {
	ctx, span := Start(t.Context(), "stage", Sandbox, "s1")
	if span != nil || ctx != t.Context() || Follow(ctx, ctx) != ctx {
		t.Error("a span without a parent")
	}
	span.End(nil)
	id := "s1"
	if n := testing.AllocsPerRun(100, func() {
		_, span := Start(ctx, "stage", Sandbox, id)
		span.End(nil)
	}); n > 0 {
		t.Errorf("%v allocations without a parent span", n)
	}
}

func BenchmarkStart(b *testing.B) {
	id := "0123456789abcdef"
	run := func(b *testing.B, ctx context.Context) {
		b.ReportAllocs()
		for b.Loop() {
			_, span := Start(ctx, "sandbox/attach", PodNamespace, "default", PodName, "web", Sandbox, id)
			span.End(nil)
		}
	}
	ctx, cancel := context.WithTimeout(b.Context(), 1<<40)
	defer cancel()
	b.Run("off", func(b *testing.B) { run(b, ctx) })
	provider := sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter()))
	ctx, root := provider.Tracer("bench").Start(ctx, "call")
	defer root.End()
	b.Run("on", func(b *testing.B) { run(b, ctx) })
}
