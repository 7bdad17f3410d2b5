package kubeletapi

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"
	"time"
)

// TestConnectionsAreBounded checks that clients without a login, such as pods, can't hold more than
// a number of connections.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	_, auth := testAuth(t)
	s, err := New(Config{Listen: "127.0.0.1:0", Node: "here", Client: auth.client, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", s.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var idle []net.Conn
	for range maxConnections {
		idle = append(idle, dial())
	}
	client := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true})
	answered := make(chan error, 1)
	go func() { answered <- client.HandshakeContext(t.Context()) }()
	select {
	case err := <-answered:
		t.Errorf("one connection more was served: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	for _, c := range idle {
		_ = c.Close()
	}
	if err := <-answered; err != nil {
		t.Errorf("after the others were closed: %v", err)
	}
}
