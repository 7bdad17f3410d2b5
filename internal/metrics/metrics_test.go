package metrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/huskd/husk/internal/container"
	containerlife "github.com/huskd/husk/internal/container/lifecycle"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMetrics(t *testing.T) {
	m := New(Sources{
		Sandboxes:  func() []sandbox.Status { return []sandbox.Status{{State: lifecycle.Ready}, {State: lifecycle.Ready}} },
		Containers: func() []container.Status { return []container.Status{{State: containerlife.Exited}} },
		Images:     func() []image.Image { return []image.Image{{Size: 40}, {Size: 2}} },
		Debts:      func() int { return 7 },
	})
	m.Sandbox(sandbox.Status{State: lifecycle.Attaching, Steps: []pod.Step{{Name: "pin"}}})
	m.Sandbox(sandbox.Status{State: lifecycle.Ready, Steps: []pod.Step{{Name: "pin", Took: time.Millisecond}, {Name: "attach"}}})
	m.Container(container.Status{State: containerlife.Running, Steps: []pod.Step{{Name: "mount"}}})
	refusal := status.Error(codes.NotFound, "none")
	_, err := m.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/Version"}, func(context.Context, any) (any, error) { return nil, refusal })
	if !errors.Is(err, refusal) {
		t.Error(err)
	}
	page := scrape(t, m)
	for _, line := range []string{
		`husk_sandboxes{state="ready"} 2`, `husk_containers{state="exited"} 1`, "husk_images 2", "husk_image_bytes 42", "husk_network_debts 7",
		`husk_step_seconds_count{of="sandbox",step="pin"} 1`, `husk_step_seconds_bucket{of="sandbox",step="pin",le="0.001"} 1`,
		`husk_step_seconds_count{of="container",step="mount"} 1`,
		`husk_call_seconds_count{code="NotFound",method="Version",service="runtime.v1.RuntimeService"} 1`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no line %s in\n%s", line, page)
		}
	}
}

// scrape serves the metrics on a free port and gets them.
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
