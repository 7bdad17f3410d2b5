package event

import (
	"fmt"
	"testing"
)

// BenchmarkAdd adds an event that a full log of 100 pods already has.
func BenchmarkAdd(b *testing.B) {
	l := NewLog()
	event := func(i int) Event {
		return Event{
			Pod: fmt.Sprintf("default/pod-%d", i%100), UID: fmt.Sprintf("0b8c1a02-0000-4000-8000-%012d", i%100), Container: "web", Warning: true,
			Reason: "Unhealthy", Message: fmt.Sprintf("Readiness probe failed: Get \"http://10.0.0.1:80/%d\": answers 500 Internal Server Error", i/100),
		}
	}
	events := make([]Event, Max)
	for i := range events {
		events[i] = event(i)
		l.Add(events[i])
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Add(events[i%100])
	}
}

// BenchmarkAfter reads the latest event of a full log.
func BenchmarkAfter(b *testing.B) {
	l := NewLog()
	for i := range Max {
		l.Add(Event{Pod: fmt.Sprint(i)})
	}
	_, last, _ := l.After(0)
	b.ReportAllocs()
	for b.Loop() {
		if events, _, _ := l.After(last - 1); len(events) != 1 {
			b.Fatal(len(events))
		}
	}
}
