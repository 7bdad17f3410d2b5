package kubeletapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// serveFlooded starts a server and returns a function that connects to it from an address.
func serveFlooded(t *testing.T) func(from string) *tls.Conn {
	t.Helper()
	_, auth := testAuth(t)
	s, err := New(Config{Listen: "127.0.0.1:0", Node: "here", Client: auth.client, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(from string) *tls.Conn {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
		conn, err := tls.DialWithDialer(&dialer, "tcp", s.listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

// request sends a request with a token and returns the status of the answer.
func request(t *testing.T, conn net.Conn, token string) int {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(conn, "GET /statusz HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer %s\r\n\r\n", token); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}

// TestIdleConnections checks that a client without a login, such as a pod, that opens all
// connections that there may be keeps nobody else waiting, nor does it end the connection of
// someone who was let in, even from its own address.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	const may = "may:get:statusz"
	dial := serveFlooded(t)
	early, other := dial("127.0.0.1"), dial("127.0.0.3")
	if code := request(t, early, may); code != http.StatusOK {
		t.Fatalf("status %d", code)
	}
	var idle []*tls.Conn
	for range maxConnections + 10 {
		idle = append(idle, dial("127.0.0.1"))
	}
	if code := request(t, dial("127.0.0.2"), may); code != http.StatusOK {
		t.Errorf("another client: status %d", code)
	}
	for name, conn := range map[string]*tls.Conn{"the client that was let in": early, "an idle one of another client": other, "the last of the flood": idle[len(idle)-1]} {
		if code := request(t, conn, may); code != http.StatusOK {
			t.Errorf("%s: status %d", name, code)
		}
	}
	_ = idle[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := idle[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first of the flood is open: %v", err)
	}
}

// TestRefusedClients checks that who is refused holds no connection: not with a request after the
// other, nor with a body that doesn't end, nor with a large header, nor with HTTP/2.
func TestRefusedClients(t *testing.T) {
	t.Parallel()
	dial := serveFlooded(t)
	for name, sent := range map[string]string{
		"no login":       "GET / HTTP/1.1\r\nHost: here\r\n\r\n",
		"no permission":  "GET /metrics HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer may:get:statusz\r\n\r\n",
		"a slow body":    "POST /exec/a/b/c HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\nx",
		"a large body":   "POST /exec/a/b/c HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000000\r\n\r\nx",
		"endless chunks": "POST /exec/a/b/c HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
		"a large header": "GET / HTTP/1.1\r\nHost: here\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n",
		"HTTP/2":         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial("127.0.0.1")
			if got := conn.ConnectionState().NegotiatedProtocol; got == "h2" {
				t.Error("the server speaks HTTP/2")
			}
			if _, err := io.WriteString(conn, sent); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(headerTimeout))
			answer, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(string(answer), "HTTP/1.1 4") && !strings.HasPrefix(string(answer), "HTTP/1.1 505") {
				t.Errorf("%v: %.100q", err, answer)
			}
		})
	}
}

// TestClientOf checks that a host that has many IPv6 addresses is one client.
func TestClientOf(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1/32", "[::ffff:192.0.2.1]:5": "192.0.2.1/32", "[2001:db8::1:2:3:4]:5": "2001:db8::/64", "[fe80::1%eth0]:5": "fe80::/64",
	} {
		addr, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if got := clientOf(addr).String(); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
}
