package ocitest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
)

// screen collects the output of a process.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// client is a client of an attach or exec.
type client struct {
	c              *container
	stdin          *io.PipeWriter
	stdout, stderr screen
	resize         chan oci.Size
	leave          context.CancelFunc
	done           chan error
}

// attach attaches a client, with stdin if input is true.
func (c *container) attach(input bool) *client {
	ctx, cancel := context.WithCancel(c.Context())
	k := &client{c: c, resize: make(chan oci.Size), leave: cancel, done: make(chan error, 1)}
	s := oci.Streams{Stdout: &k.stdout, Stderr: &k.stderr, TTY: c.Terminal, Resize: k.resize}
	if input {
		s.Stdin, k.stdin = io.Pipe()
	}
	driver := c.Driver
	go func() {
		err := driver.Attach(ctx, c.ID, s)
		if k.stdin != nil {
			_ = k.stdin.CloseWithError(io.ErrClosedPipe)
		}
		k.done <- err
	}()
	c.Cleanup(func() {
		cancel()
		if k.stdin != nil {
			_ = k.stdin.Close()
		}
	})
	return k
}

func (k *client) types(text string) {
	k.c.Helper()
	if _, err := io.WriteString(k.stdin, text); err != nil {
		k.c.Errorf("typing %q: %v", text, err)
	}
}

// resizes sends a sequence of sizes that ends with 149 by 59.
func (k *client) resizes() {
	k.c.Helper()
	for i := range 50 {
		select {
		case k.resize <- oci.Size{Width: uint16(100 + i), Height: uint16(10 + i)}:
		case <-time.After(patience):
			k.c.Fatal("the driver doesn't receive the new size")
		}
	}
}

func (k *client) sees(text string) {
	k.c.Helper()
	k.seesAfter(0, text)
}

// seesAfter waits until the client has received these texts, in this order and after its first skip
// bytes.
func (k *client) seesAfter(skip int, texts ...string) {
	k.c.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		rest, all := k.stdout.String()[skip:], true
		for _, text := range texts {
			var found bool
			_, rest, found = strings.Cut(rest, text)
			all = all && found
		}
		if all {
			return
		}
		if time.Now().After(deadline) {
			k.c.Fatalf("after %v the client has received %q, want %q in it", patience, k.stdout.String()[skip:], texts)
		}
	}
}

func (k *client) returns(want error) {
	k.c.Helper()
	select {
	case err := <-k.done:
		if !errors.Is(err, want) {
			k.c.Errorf("attach returned %v, want %v", err, want)
		}
	case <-time.After(patience):
		k.c.Fatalf("attach still runs after %v", patience)
	}
}

// attach checks that several clients each get both streams.
func attach(b *subtest) {
	c := b.shell("trap 'echo out; echo err >&2; exit 0' TERM; while :; do echo tick; sleep 0.01; done").run()
	one, two := c.attach(false), c.attach(false)
	one.sees("tick")
	two.sees("tick")
	one.leave()
	one.returns(context.Canceled)
	b.must(c.Driver.Signal(b.ctx(), c.ID, 15))
	two.returns(nil)
	if out, err := two.stdout.String(), two.stderr.String(); !strings.HasSuffix(out, "tick\nout\n") || err != "err\n" {
		b.Errorf("stdout ends with %q, stderr is %q", out[max(len(out)-20, 0):], err)
	}
	c.ends(0)
}

func attachStdin(b *subtest) {
	c := b.shell("while read line; do echo got $line; done; echo eof")
	c.Stdin = true
	c.run()
	one := c.attach(true)
	one.types("one\n")
	one.sees("got one")
	// The end of a client's input ends its session. It loses none of the input, and ends neither the
	// container's stdin nor the sessions of others. Whether the client still gets the answer depends
	// on how fast it comes.
	onlooker, two := c.attach(false), c.attach(true)
	// A client gets no output from before it was attached.
	c.eventually("the onlooker is attached", func() bool {
		one.types("one\n")
		return strings.Contains(onlooker.stdout.String(), "got one")
	})
	one.types("two\n")
	_ = one.stdin.Close()
	one.returns(nil)
	onlooker.sees("got two")
	two.types("three\n")
	onlooker.sees("got three")
	onlooker.leave()
	onlooker.returns(context.Canceled)
	two.sees("got three")
	two.leave()
	two.returns(context.Canceled)
	c.isIn(oci.Running)
	out := c.output("stdout")
	if strings.ReplaceAll(out, "got one\n", "") != "got two\ngot three\n" {
		b.Errorf("the log is %q", out)
	}
	// A container without stdin reads EOF, and the client doesn't block.
	c = b.shell("read line; echo read $?; sleep 1000").run()
	none := c.attach(true)
	c.says("read 1")
	none.types("discarded\n")
	none.leave()
	none.returns(context.Canceled)
	c.isIn(oci.Running)
}

func attachStdinOnce(b *subtest) {
	c := b.container("wc", "-c")
	c.Stdin, c.StdinOnce = true, true
	c.run()
	onlooker := c.attach(false)
	onlooker.leave() // without input, so it doesn't close stdin
	onlooker.returns(context.Canceled)
	one := c.attach(true)
	const size = 300_000
	one.types(strings.Repeat("x", size))
	_ = one.stdin.Close()
	one.returns(nil)
	if got := strings.TrimSpace(one.stdout.String()); got != "300000" {
		b.Errorf("wc counted %s, want %d", got, size)
	}
	c.ends(0)

	c = b.shell("cat >/dev/null; exit 3")
	c.Stdin, c.StdinOnce = true, true
	c.run()
	gone := c.attach(true)
	gone.types("x")
	gone.leave()
	gone.returns(context.Canceled)
	c.ends(3)
}

func attachTerminal(b *subtest) {
	c := b.shell("tty; echo error >&2; while read -r line; do echo got $line; done")
	c.Terminal, c.Stdin = true, true
	c.run()
	one := c.attach(true)
	one.types("x\n")
	one.sees("got x\r\n")
	// Of many sizes that are pending, the last one wins.
	b.must(syscall.Kill(c.Monitor(c.ID), syscall.SIGSTOP))
	one.resizes()
	b.must(syscall.Kill(c.Monitor(c.ID), syscall.SIGCONT))
	b.eventually("the terminal has the last size", func() bool {
		one.types("\n")
		var out screen
		code, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"sh", "-c", "stty size </proc/1/fd/0"}, Streams: oci.Streams{Stdout: &out}})
		return code == 0 && err == nil && out.String() == "59 149\n"
	})
	one.types("\x04") // the end of input
	one.returns(nil)
	c.ends(0)
	log := c.output("stdout")
	for _, want := range []string{"/dev/", "error\r\n", "got x\r\n"} {
		if !strings.Contains(log, want) {
			b.Errorf("the log does not contain %q: %q", want, log)
		}
	}
	if log := c.output("stderr"); log != "" {
		b.Errorf("stderr in the log of a terminal is %q, want none", log)
	}
}

func attachEnds(b *subtest) {
	c := b.shell("while :; do echo tick; sleep 0.01; done")
	c.create()
	early := c.attach(false)
	b.must(c.Driver.Start(b.ctx(), c.ID))
	early.sees("tick")
	b.must(c.Driver.Signal(b.ctx(), c.ID, 9))
	early.returns(nil)
	c.ends(137)
	if err := c.Driver.Attach(b.ctx(), c.ID, oci.Streams{}); !errdefs.IsFailedPrecondition(err) {
		b.Errorf("Attach to an exited container: %v, want a failed precondition", err)
	}
	// A client whose output fails doesn't affect the container.
	c = b.shell("while :; do echo tick; sleep 0.01; done").run()
	reader, writer := io.Pipe()
	_ = reader.CloseWithError(errGone)
	if err := c.Driver.Attach(b.ctx(), c.ID, oci.Streams{Stdout: writer}); !errors.Is(err, errGone) {
		b.Errorf("Attach with a broken output: %v, want %v", err, errGone)
	}
	c.isIn(oci.Running)
	c.says("tick")
}

var errGone = errors.New("the client is gone")
