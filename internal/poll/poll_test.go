package poll

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pipe(t *testing.T) (r *os.File, w int) {
	t.Helper()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, err := New(ends[0], "pipe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = unix.Close(ends[1]) })
	return r, ends[1]
}

func TestUntil(t *testing.T) {
	r, w := pipe(t)
	called := make(chan struct{}, 10)
	done := make(chan error, 1)
	var got byte
	go func() {
		done <- Until(t.Context(), r, func(fd int) bool {
			var b [1]byte
			n, _ := unix.Read(fd, b[:])
			got = b[0]
			called <- struct{}{}
			return n == 1 && got == '2'
		})
	}()
	<-called // before anything can be read
	for _, b := range []string{"1", "2"} {
		if _, err := unix.Write(w, []byte(b)); err != nil {
			t.Fatal(err)
		}
		<-called
	}
	if err := <-done; err != nil || got != '2' {
		t.Errorf("the last byte is %q, %v; want 2", got, err)
	}
}

func TestUntilContext(t *testing.T) {
	reason := errors.New("enough")
	for _, early := range []bool{true, false} {
		r, _ := pipe(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		if early {
			cancel(reason)
		} else {
			time.AfterFunc(5*time.Millisecond, func() { cancel(reason) })
		}
		if err := Until(ctx, r, func(int) bool { return false }); !errors.Is(err, reason) {
			t.Errorf("Until: %v, want %v", err, reason)
		}
	}
}

func TestInterrupt(t *testing.T) {
	r, _ := pipe(t)
	time.AfterFunc(5*time.Millisecond, func() { Interrupt(r) })
	for range 2 {
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read: %v, want %v", err, os.ErrDeadlineExceeded)
		}
	}
}

func TestNewFails(t *testing.T) {
	if f, err := New(-1, "bad"); err == nil {
		t.Errorf("New(-1) returned %v, want an error", f)
	}
}
