package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/huskd/husk/internal/hosttest"
)

// server is a member of a real etcd on loopback.
type server struct {
	t       testing.TB
	name    string
	dir     string
	url     string // for clients
	peerURL string
	args    []string
	cmd     *exec.Cmd
}

// ports returns TCP ports on loopback that were free just now.
func ports(t testing.TB, n int) (out []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out
}

// start starts etcd with a single member, and waits until it answers.
func start(t testing.TB, args ...string) *server {
	t.Helper()
	return startMembers(t, 1, args...)[0]
}

// startMembers starts an etcd of some members. The test retries with other ports if those are taken
// meanwhile.
func startMembers(t testing.TB, members int, args ...string) []*server {
	t.Helper()
	hosttest.Program(t, "etcd")
	scheme := "http"
	if strings.Contains(strings.Join(args, " "), "--cert-file") {
		scheme = "https"
	}
	for try := 0; ; try++ {
		free := ports(t, 2*members)
		var all []*server
		var initial []string
		for i := range members {
			s := &server{t: t, name: fmt.Sprint("m", i), dir: t.TempDir(), args: args,
				url: fmt.Sprintf("%s://127.0.0.1:%d", scheme, free[2*i]), peerURL: fmt.Sprintf("http://127.0.0.1:%d", free[2*i+1])}
			all, initial = append(all, s), append(initial, s.name+"="+s.peerURL)
		}
		for _, s := range all {
			s.args = append([]string{"--initial-cluster", strings.Join(initial, ",")}, args...)
			s.run()
		}
		ok := true
		for _, s := range all {
			ok = ok && s.listens()
		}
		if ok {
			return all
		}
		if try == 3 {
			data, _ := os.ReadFile(filepath.Join(all[0].dir, "log"))
			t.Fatalf("etcd doesn't start:\n%s", data)
		}
		for _, s := range all {
			s.kill()
		}
	}
}

// run starts the process. It ends with the test at the latest.
func (s *server) run() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	// Short leases need short elections: no lease is shorter than 1.5 elections.
	s.cmd = exec.Command("etcd", append([]string{"--name", s.name, "--data-dir", filepath.Join(s.dir, "data"), "--heartbeat-interval", "50", "--election-timeout", "500",
		"--listen-client-urls", s.url, "--advertise-client-urls", s.url, "--listen-peer-urls", s.peerURL, "--initial-advertise-peer-urls", s.peerURL}, s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.kill)
}

func (s *server) listens() bool {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", s.address()); err == nil {
			c.Close()
			return true
		}
		if syscall.Kill(s.cmd.Process.Pid, 0) != nil {
			return false
		}
	}
	return false
}

func (s *server) address() string { _, address, _ := strings.Cut(s.url, "://"); return address }

// kill ends the process, and waits for its end.
func (s *server) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// backup returns a function that makes etcd what it is now, as when it is restored from a backup.
func (s *server) backup() (restore func()) {
	s.t.Helper()
	s.kill()
	saved := filepath.Join(s.dir, "saved")
	if err := os.CopyFS(saved, os.DirFS(filepath.Join(s.dir, "data"))); err != nil {
		s.t.Fatal(err)
	}
	s.run()
	s.listens()
	return func() {
		s.t.Helper()
		s.kill()
		if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
			s.t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(s.dir, "data"), os.DirFS(saved)); err != nil {
			s.t.Fatal(err)
		}
		s.run()
		s.listens()
	}
}

// client returns a client of the library, for what stores can't do.
func (s *server) client(user, password string) *clientv3.Client {
	s.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.url}, Logger: zap.NewNop(), Username: user, Password: password, DialTimeout: 20 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// trusting is client with TLS and without a user.
func (s *server) trusting(ca string) *clientv3.Client {
	s.t.Helper()
	pem, err := os.ReadFile(ca)
	if err != nil {
		s.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.url}, Logger: zap.NewNop(), TLS: &tls.Config{RootCAs: pool}, DialTimeout: 20 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// proxy is a way to a server that can be cut.
type proxy struct {
	url    string
	target string

	delay time.Duration // each way; Invariant: it doesn't change

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func (s *server) proxy() *proxy { return s.slow(0) }

// slow returns a way on which everything takes a while, a new connection included.
func (s *server) slow(delay time.Duration) *proxy {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	scheme, _, _ := strings.Cut(s.url, "://")
	p := &proxy{url: scheme + "://" + l.Addr().String(), target: s.address(), delay: delay, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.forward(c) })
		}
	})
	s.t.Cleanup(func() { l.Close(); p.set(true); wg.Wait() })
	return p
}

func (p *proxy) forward(c net.Conn) {
	defer c.Close()
	up, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	defer up.Close()
	p.mu.Lock()
	if p.cut {
		p.mu.Unlock()
		return
	}
	p.conns[c], p.conns[up] = true, true
	p.mu.Unlock()
	if p.delay > 0 {
		time.Sleep(2 * p.delay) // what TCP would need
	}
	done := make(chan struct{})
	go func() { defer close(done); p.copy(up, c); up.Close() }()
	p.copy(c, up)
	c.Close()
	<-done
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	delete(p.conns, up)
}

// copy copies until one of both is closed. It keeps the distances in time of what it copies.
func (p *proxy) copy(to, from net.Conn) {
	if p.delay == 0 {
		_, _ = io.Copy(to, from)
		return
	}
	type part struct {
		due  time.Time
		data []byte
	}
	parts := make(chan part, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for next := range parts {
			time.Sleep(time.Until(next.due))
			_, _ = to.Write(next.data)
		}
	}()
	for {
		data := make([]byte, 32<<10)
		n, err := from.Read(data)
		parts <- part{time.Now().Add(p.delay), data[:n]}
		if err != nil {
			break
		}
	}
	close(parts)
	<-done
}

// set cuts the way or mends it.
func (p *proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	if cut {
		for c := range p.conns {
			c.Close()
		}
	}
}
