package cli

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	huskv1 "github.com/huskd/husk/api/v1"
)

// forwarding is a running husk port-forward.
type forwarding struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Reader
	errs  *bufio.Reader
}

func startForwarding(t *testing.T, env []string, args ...string) *forwarding {
	t.Helper()
	f := &forwarding{t: t, cmd: exec.Command("husk", append([]string{"port-forward"}, args...)...)}
	f.cmd.Env = append(os.Environ(), env...)
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := f.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cmd.Process.Kill() })
	f.lines, f.errs = bufio.NewReader(out), bufio.NewReader(errs)
	return f
}

// line reads the next line of output, which must match want, and returns the submatches.
func (f *forwarding) line(want string) []string {
	f.t.Helper()
	line, err := f.lines.ReadString('\n')
	found := regexp.MustCompile("^" + want + "\n$").FindStringSubmatch(line)
	if err != nil || found == nil {
		_ = f.cmd.Process.Kill()
		_, errs := f.end()
		f.t.Fatalf("output %q, %v, want %s; %s", line, err, want, errs)
	}
	return found[1:]
}

func say(t *testing.T, port, words string) string {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err.Error() // a reset may come before connect returns
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, words); err != nil {
		return err.Error()
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(answer)
}

// end waits for the exit and returns the exit code and the rest of standard error.
func (f *forwarding) end() (int, string) {
	f.t.Helper()
	_, _ = io.Copy(io.Discard, f.lines)
	errs, _ := io.ReadAll(f.errs)
	_ = f.cmd.Wait() // the exit code is checked by the caller
	return f.cmd.ProcessState.ExitCode(), string(errs)
}

func TestPortForward(t *testing.T) {
	t.Parallel()
	h, env := serve(t, web("cat", false))
	f := startForwarding(t, env, "pod/web", ":echo", "0:81")
	port := f.line(`Forwarding from 127\.0\.0\.1:([0-9]+) -> 80`)[0]
	if six, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = six.Close()
		f.line(`Forwarding from \[::1\]:` + port + ` -> 80`)
	}
	shut := f.line(`Forwarding from 127\.0\.0\.1:([0-9]+) -> 81`)[0]
	for i := range 3 {
		words := fmt.Sprintf("words %d ", i) + strings.Repeat("x", i*100_000)
		if got := say(t, port, words); got != strings.ToUpper(words) {
			t.Errorf("%d bytes of %d came back", len(got), len(words))
		}
	}
	if got := say(t, shut, "x"); !strings.Contains(got, "reset") {
		t.Errorf("port without a listener: %q", got)
	}
	// The client may see the reset before husk prints the reason.
	if line, err := f.errs.ReadString('\n'); line != "husk: port 81 of pod default/web: forward port 81: connection refused\n" {
		t.Errorf("standard error %q, %v", line, err)
	}
	if got := say(t, port, "on"); got != "ON" {
		t.Errorf("after a failed connection, the other port answers %q", got)
	}
	_ = f.cmd.Process.Signal(syscall.SIGINT)
	if code, errs := f.end(); code != 130 || errs != "" {
		t.Errorf("exit code %d, %q", code, errs)
	}
	// A local port chosen by the user, and a pod that is replaced.
	f = startForwarding(t, env, "web", port+":80", "--address", "127.0.0.1")
	f.line(`Forwarding from 127\.0\.0\.1:` + port + ` -> 80`)
	h.SetPod(&huskv1.Pod{Namespace: "default", Name: "web", Uid: "another"})
	say(t, port, "x")
	if code, errs := f.end(); code != 1 || !strings.HasPrefix(errs, "husk: lost pod default/web: ") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

// TestPortForwardTaken checks that a port of localhost that another program has on one address
// isn't forwarded on the other.
func TestPortForwardTaken(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	for _, taken := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", taken)
		if err != nil { // no IPv6
			continue
		}
		f := startForwarding(t, env, "web", fmt.Sprintf("%d:80", l.Addr().(*net.TCPAddr).Port))
		code, errs := f.end()
		_ = l.Close()
		want := fmt.Sprintf("husk: can't listen: listen tcp %s: bind: address already in use: stop what listens there, or name another port, as in :80\n", l.Addr())
		if code != 1 || errs != want {
			t.Errorf("exit code %d, %q", code, errs)
		}
	}
}

func TestTopOnTerminal(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	p := newPTY(t, 100, 30)
	p.start(env, "husk", "top")
	table := regexp.MustCompile(`^(\^C)?POD +CPU\(cores\) .*\nweb +[0-9]+m +5Mi +64Mi +3 .*$`)
	live := regexp.MustCompile(`^by name; .* q quit\nPOD +CPU\(cores\) .*\nweb +[0-9]+m +5Mi +64Mi +3 .*$`)
	p.until("table that is redrawn in place", func() bool {
		return frames(p.output()) > 12 && live.MatchString(draw(p.output(), 100, 30).String())
	})
	p.typeKeys("\x03")
	code, out := p.end()
	if shown := draw(out, 100, 30).String(); code != 130 || !table.MatchString(shown) {
		t.Errorf("exit code %d, on the screen:\n%s", code, shown)
	}
}

// Keys sort the table and end it, also after ctrl-z. The shell of the test doesn't restore the
// terminal of a stopped job by itself.
func TestTopKeys(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	p := newPTY(t, 100, 30)
	p.start(env, "sh", "-mc", "husk top; echo stopped=$?; stty -a; fg >/dev/null; echo ended=$?")
	p.expect("by name; ")
	p.typeKeys("m")
	p.expect("by memory; ")
	p.typeKeys("\x1a")
	p.expect("stopped=148\r\n")
	p.expect(" icanon ")
	p.expect(" echo ")
	p.until("mode of single keys", func() bool { return p.modes().Lflag&(unix.ICANON|unix.ECHO) == 0 })
	p.typeKeys("c")
	p.expect("by cpu; ")
	p.typeKeys("q")
	p.expect("ended=0\r\n")
	if code, out := p.end(); code != 0 {
		t.Errorf("exit code %d: %q", code, out)
	}
}
