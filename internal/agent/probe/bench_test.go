package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// BenchmarkFailed carries out HTTP checks that fail: the server isn't there, or answers 500.
func BenchmarkFailed(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "out of order", http.StatusInternalServerError)
	}))
	b.Cleanup(server.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	_ = closed.Close()
	for _, at := range []struct {
		name string
		addr net.Addr
	}{{"refused", closed.Addr()}, {"answers 500", server.Listener.Addr()}} {
		b.Run(at.name, func(b *testing.B) {
			p := New(func(context.Context, string, []string) (int, string, error) { return 0, "", nil }, openJournal(b))
			b.Cleanup(p.Close)
			_, port, _ := net.SplitHostPort(at.addr.String())
			number, _ := strconv.Atoi(port)
			c := &corev1.Container{Name: "c", ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(number), Scheme: "HTTP"}},
				PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1,
			}}
			changes := 0
			r := &run{Run: Run{Target: Target{ID: "id", Container: c, Address: "127.0.0.1"}, Started: time.Now()}, pod: "uid", ctx: b.Context(),
				Watcher: Watcher{Changed: func() { changes++ }, Failed: func(Target, string) {}}}
			b.ReportAllocs()
			for b.Loop() {
				p.runProbe(scheduledProbe{time.Now(), r, readiness})
				p.queue = p.queue[:0]
			}
			if changes > 1 {
				b.Errorf("%d changes", changes)
			}
		})
	}
}
