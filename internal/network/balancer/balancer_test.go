package balancer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/compile"
	"github.com/huskd/husk/internal/network/servicetable"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

var _ Kernel = (*servicetable.Table)(nil)

type source chan service.Changes

func (s source) Run(ctx context.Context, update func(service.Changes), waiting func(error)) error {
	waiting(errors.New("not yet"))
	for {
		select {
		case c := <-s:
			update(c)
			waiting(nil)
		case <-ctx.Done():
			return nil
		}
	}
}

// kernel refuses the first update.
type kernel struct {
	updates  chan *compile.Update
	applied  int
	repaired chan struct{}
	ended    chan []compile.Ended
}

func (k *kernel) Apply(u *compile.Update) error {
	k.updates <- u
	if k.applied++; k.applied == 1 {
		return errors.New("no")
	}
	return nil
}

func (k *kernel) Repair() error {
	k.repaired <- struct{}{}
	return nil
}

func (k *kernel) End(e []compile.Ended) (int, error) {
	k.ended <- e
	return len(e), nil
}

func (k *kernel) Maintain(ctx context.Context, _ *slog.Logger) { <-ctx.Done() }

func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func TestChangesReachTheKernel(t *testing.T) {
	k := &kernel{updates: make(chan *compile.Update, 10), repaired: make(chan struct{}, 10), ended: make(chan []compile.Ended, 10)}
	s := make(source)
	b := New(Config{Source: s, Kernel: k, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	port := freePort(t)
	web := &service.Service{
		Namespace: "n", Name: "web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, HealthCheckPort: port,
		Ports: []service.Port{{Protocol: service.TCP, Port: 80}},
	}
	endpoints := &service.Slice{
		Namespace: "n", Name: "1", Service: "web", Ports: []service.EndpointPort{{Protocol: service.TCP, Port: 8080}},
		Endpoints: []service.Endpoint{{Address: netip.MustParseAddr("10.88.0.1"), Node: "here", Ready: true}},
	}
	s <- service.Changes{Node: &service.Node{Name: "here"}, Services: map[string]*service.Service{"n/web": web}, Slices: map[string]*service.Slice{"n/1": endpoints}}
	key := compile.Key{Addr: web.ClusterIPs[0], Protocol: service.TCP, Port: 80}
	if u := <-k.updates; u.Fronts[key] == nil {
		t.Errorf("update %+v", u)
	}
	<-k.repaired
	ask := func() string {
		resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(int(port)))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		defer http.DefaultClient.CloseIdleConnections()
		body, _ := io.ReadAll(resp.Body)
		return resp.Status[:3] + " " + strings.TrimSpace(string(body))
	}
	if got, want := ask(), `200 {"service":{"namespace":"n","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`; got != want {
		t.Errorf("health check: %s, want %s", got, want)
	}
	s <- service.Changes{Slices: map[string]*service.Slice{"n/1": nil}}
	for e := <-k.ended; len(e) != 1 || e[0].Key != key; e = <-k.ended {
		if len(e) > 0 {
			t.Fatalf("ended %v", e)
		}
	}
	if got := ask(); !strings.HasPrefix(got, "503 ") {
		t.Errorf("health check without endpoints: %s", got)
	}
	s <- service.Changes{Services: map[string]*service.Service{"n/web": nil}}
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(ask(), "refused"); {
		if time.Now().After(deadline) {
			t.Fatal("the health check outlives its Service")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
