package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type word struct {
	Say string `json:"say"`
}

// open serves a socket: it passes requests to handle, and echoes lines on other connections.
func open(t *testing.T, handle Handler[word]) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	below, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	l := Split(below, func(c net.Conn) {
		serving.Add(1)
		defer serving.Done()
		Serve(t.Context(), c, handle)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done; serving.Wait() })
	return path
}

// scarce is a listener that fails once, as in a process without free file descriptors.
type scarce struct {
	net.Listener
	once sync.Once
}

func (l *scarce) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { err = &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)} })
	if err != nil {
		return nil, err
	}
	return l.Listener.Accept()
}

// TestShortage checks that a moment without file descriptors doesn't end the service.
func TestShortage(t *testing.T) {
	below, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	l := Split(&scarce{Listener: below}, func(c net.Conn) { _ = c.Close() })
	defer l.Close()
	client, err := net.Dial("unix", below.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("P")); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestSplit(t *testing.T) {
	path := open(t, func(_ context.Context, a word, stdin []byte) ([]byte, error) {
		switch a.Say {
		case "known":
			return nil, types.NewError(types.ErrIOFailure, "a disk", "is full")
		case "unknown":
			return nil, errors.New("something")
		}
		return append([]byte(a.Say+" "), stdin...), nil
	})
	if out, err := Call(t.Context(), path, word{"hello"}, []byte("{\n}")); err != nil || string(out) != "hello {\n}" {
		t.Errorf("got %q, %v", out, err)
	}
	for say, want := range map[string]uint{"known": types.ErrIOFailure, "unknown": types.ErrInternal} {
		_, err := Call(t.Context(), path, word{say}, nil)
		var e *types.Error
		if !errors.As(err, &e) || e.Code != want {
			t.Errorf("%s: %v", say, err)
		}
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "PRI * HTTP/2.0")
	got := make([]byte, 14)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "PRI * HTTP/2.0" {
		t.Errorf("the other connection answers %q, %v", got, err)
	}
}

func TestGarbage(t *testing.T) {
	path := open(t, func(context.Context, word, []byte) ([]byte, error) {
		t.Error("garbage reaches the handler")
		return nil, nil
	})
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "{garbage\n")
	answer, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(answer), `"code":6`) {
		t.Errorf("got %s, %v", answer, err)
	}
}

// TestUnavailable checks that a daemon that doesn't run, or dies during a call, means "try again
// later".
func TestUnavailable(t *testing.T) {
	_, err := Call(t.Context(), filepath.Join(t.TempDir(), "none"), word{}, nil)
	tryAgain(t, err)
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = c.Read(make([]byte, 10))
			_ = c.Close()
		}
	}()
	_, err = Call(t.Context(), path, word{"hello"}, nil)
	tryAgain(t, err)
}

func tryAgain(t *testing.T, err error) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, "huskd doesn't answer at") {
		t.Errorf("got %v", err)
	}
}

// TestHangUp checks that the handler's context is cancelled when the caller is gone.
func TestHangUp(t *testing.T) {
	told := make(chan struct{})
	began := make(chan struct{})
	path := open(t, func(ctx context.Context, _ word, _ []byte) ([]byte, error) {
		close(began)
		select {
		case <-ctx.Done():
			close(told)
		case <-time.After(10 * time.Second):
		}
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	if _, err := Call(ctx, path, word{}, nil); err == nil {
		t.Error("no error")
	}
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Error("the handler's context isn't cancelled")
	}
}
