package cli

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExecOnTerminal(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", true))
	p := newPTY(t, 100, 30)
	p.start(env, "husk", "exec", "-it", "web", "--", "sizes")
	p.expect("tty=true size=100x30\r\n")
	if !p.isRaw() {
		t.Error("the terminal isn't raw")
	}
	p.resize(80, 24)
	p.expect("size=80x24\r\n")
	p.resize(200, 50)
	p.expect("size=200x50\r\n")
	// Every key goes to the program, including those that would signal us.
	p.typeKeys("a\x03\x1a\x1c\x04\x11\x13\x10\x11\r")
	for _, key := range []int{'a', 3, 26, 28, 4, 17, 19, 16, 17, 13} {
		p.expect(fmt.Sprintf("key=%d\r\n", key))
	}
	p.typeKeys("q")
	if code, out := p.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestExecOnTerminalReturnsCode(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", true))
	p := newPTY(t, 80, 24)
	p.start(env, "husk", "exec", "-it", "web", "--", "exit", "42")
	if code, out := p.end(); code != 42 {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// Without -i the program has a terminal but no input: the keys still signal us.
func TestExecOnTerminalWithoutInput(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", true))
	p := newPTY(t, 90, 20)
	p.start(env, "husk", "exec", "-t", "web", "--", "hang")
	p.expect("hanging")
	if p.isRaw() {
		t.Error("the terminal is raw")
	}
	p.typeKeys("\x03")
	if code, out := p.end(); code != 130 {
		t.Errorf("exit code %d: %q", code, out)
	}
}

func TestTerminalIsRestored(t *testing.T) {
	t.Parallel()
	signals := map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"interrupted": {syscall.SIGINT, 130},
		"terminated":  {syscall.SIGTERM, 143},
		"hung up":     {syscall.SIGHUP, 129},
		"quit":        {syscall.SIGQUIT, 131},
	}
	for name, s := range signals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, env := serve(t, web("cat", true))
			p := newPTY(t, 80, 24)
			p.start(env, "husk", "exec", "-it", "web", "--", "keys")
			p.expect("type")
			p.until("raw mode", p.isRaw)
			if err := p.cmd.Process.Signal(s.signal); err != nil {
				t.Fatal(err)
			}
			if code, out := p.end(); code != s.code {
				t.Errorf("exit code %d, want %d: %s", code, s.code, out)
			}
		})
	}
	t.Run("huskd gone", func(t *testing.T) {
		t.Parallel()
		h, env := serve(t, web("cat", true))
		p := newPTY(t, 80, 24)
		p.start(env, "husk", "exec", "-it", "web", "--", "keys")
		p.expect("type")
		p.until("raw mode", p.isRaw)
		h.Close()
		code, out := p.end()
		if code != exitSession || !strings.Contains(out, "husk: lost huskd at unix://") {
			t.Errorf("exit code %d: %s", code, out)
		}
		// In raw mode the line would end without a carriage return.
		if !strings.HasSuffix(out, "\r\n") {
			t.Errorf("the message was written to the raw terminal: %q", out)
		}
	})
	t.Run("panic", func(t *testing.T) {
		t.Parallel()
		p := newPTY(t, 80, 24)
		p.start(nil, "husk-panic")
		p.expect("raw")
		if code, out := p.end(); code != 2 || !strings.Contains(out, "panic: on purpose") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
	t.Run("output closed", func(t *testing.T) {
		t.Parallel()
		_, env := serve(t, web("cat", true))
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p := newPTY(t, 80, 24)
		p.stdout = w
		p.start(env, "husk", "exec", "-it", "web", "--", "keys")
		w.Close()
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		p.until("raw mode", p.isRaw)
		r.Close()
		p.typeKeys("a")
		if code, out := p.end(); code != exitSession || !strings.Contains(out, "husk: can't write the program's output: ") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		_, env := serve(t)
		p := newPTY(t, 80, 24)
		p.start(env, "husk", "exec", "-it", "nopod", "--", "keys")
		if code, out := p.end(); code != exitSession || out != "husk: no pod nopod: husk ps -a lists them\r\n" {
			t.Errorf("exit code %d: %q", code, out)
		}
	})
}

func TestAttachDetaches(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("keys", true))
	p := newPTY(t, 80, 24)
	p.start(env, "husk", "attach", "web")
	p.expect("type")
	p.until("raw mode", p.isRaw)
	p.typeKeys("\x03")
	p.expect("key=3\r\n") // sent to the program
	p.typeKeys("\x10x")
	p.expect("key=16\r\nkey=120\r\n") // held back, then passed on
	p.typeKeys("\x10")
	p.typeKeys("\x11")
	code, out := p.end()
	if code != 0 || !strings.HasSuffix(out, "\r\ndetached: husk attach web reattaches\r\n") {
		t.Errorf("exit code %d: %q", code, out)
	}
	if strings.Contains(out, "key=17") {
		t.Errorf("the program got the keys that detach: %q", out)
	}
}

// If the container has no terminal, ours is not put into raw mode, and ctrl-c detaches.
func TestAttachWithoutTerminal(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	p := newPTY(t, 80, 24)
	p.start(env, "husk", "attach", "web")
	p.typeKeys("one\n")
	p.expect("one\r\none\r\n") // echoed by the terminal, then by cat
	p.typeKeys("\x03")
	if code, out := p.end(); code != 130 {
		t.Errorf("exit code %d: %q", code, out)
	}
}

func TestAttachEnds(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("keys", true))
	p := newPTY(t, 80, 24)
	p.start(env, "husk", "attach", "web")
	p.expect("type")
	p.typeKeys("q")
	if code, out := p.end(); code != 0 {
		t.Errorf("exit code %d: %q", code, out)
	}
}

// Large binary data is passed unchanged in both directions.
func TestExecIsTransparent(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	const size = 48 << 20
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i % 40000)
	}
	husk := func(in []byte, args ...string) []byte {
		t.Helper()
		cmd := exec.Command("husk", append([]string{"exec", "-i", "web", "--"}, args...)...)
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdin = bytes.NewReader(in)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	began := time.Now()
	if got, want := string(husk(data, "sha256")), fmt.Sprintf("%d bytes %x\n", size, sha256.Sum256(data)); got != want {
		t.Errorf("sent to the program: %s, want %s", got, want)
	}
	t.Logf("%d MiB to the program in %s", size>>20, time.Since(began))
	began = time.Now()
	if !bytes.Equal(husk(nil, "bytes", fmt.Sprint(size)), data) {
		t.Error("output of the program differs from what it wrote")
	}
	t.Logf("%d MiB from the program in %s", size>>20, time.Since(began))
	if !bytes.Equal(husk(data[:5<<20], "cat"), data[:5<<20]) {
		t.Error("data copied by cat differs from what was sent")
	}
}

// A program that exits without reading its input doesn't make us hang.
func TestExecEndsBeforeInput(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	cmd := exec.Command("husk", "exec", "-i", "web", "--", "exit", "3")
	cmd.Env = append(os.Environ(), env...)
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	cmd.Stdin = zero
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("%v, want exit code 3", err)
	}
}

func TestPasswordPrompt(t *testing.T) {
	t.Parallel()
	_, env := serve(t)
	t.Run("typed", func(t *testing.T) {
		p := newPTY(t, 80, 24)
		p.start(env, "husk", "image", "pull", "localhost/private:latest", "-u", "me")
		p.expect("password of me for localhost/private:latest: ")
		p.until("disabled echo", func() bool { return p.modes().Lflag&syscall.ECHO == 0 })
		p.typeKeys("secret\n")
		code, out := p.end()
		if code != 0 || !strings.Contains(out, "pulled localhost/private:latest") {
			t.Errorf("exit code %d: %q", code, out)
		}
		if strings.Contains(out, "secret") {
			t.Errorf("the password was echoed: %q", out)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		p := newPTY(t, 80, 24)
		p.start(env, "husk", "image", "pull", "localhost/private:latest", "-u", "me")
		p.until("disabled echo", func() bool { return p.modes().Lflag&syscall.ECHO == 0 })
		p.typeKeys("\x03")
		if code, out := p.end(); code != 130 {
			t.Errorf("exit code %d: %q", code, out)
		}
	})
}
