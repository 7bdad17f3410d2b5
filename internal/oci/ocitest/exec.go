package ocitest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/oci"
)

// exec runs a script in the container and returns what it wrote.
func (c *container) exec(script string) (code int, stdout, stderr string) {
	c.Helper()
	var out, err screen
	code, execErr := c.Driver.Exec(c.ctx(), oci.Exec{ID: c.ID, Args: []string{"sh", "-c", script}, Streams: oci.Streams{Stdout: &out, Stderr: &err}})
	c.must(execErr)
	return code, out.String(), err.String()
}

func execs(b *subtest) {
	c := b.container("sleep", "1000")
	c.spec.Process.User = specs.User{UID: 1000, GID: 1001}
	c.run()
	for script, want := range map[string][3]string{
		"exit 7":                       {"7", "", ""},
		"kill -9 $$":                   {"137", "", ""},
		"echo out; echo err >&2":       {"0", "out\n", "err\n"},
		"echo $GREETING; pwd; id -u":   {"0", "hello\n/work\n1000\n", ""},
		"echo again >/dev/stdout":      {"0", "again\n", ""},
		"tty; true":                    {"0", "not a tty\n", ""},
		"read line; echo $?":           {"0", "1\n", ""},
		"cat /proc/self/oom_score_adj": {"0", "0\n", ""},
	} {
		code, stdout, stderr := c.exec(script)
		if got := [3]string{strconv.Itoa(code), stdout, stderr}; got != want {
			b.Errorf("code and outputs of %s are %q, want %q", script, got, want)
		}
	}
	if code, stdout, _ := c.exec("seq 200000"); code != 0 || len(stdout) != 1288895 {
		b.Errorf("exec with much output: code %d, %d bytes", code, len(stdout))
	}
	// Streams without a reader don't block the program.
	code, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"sh", "-c", "seq 100000; seq 100000 >&2; exit 5"}})
	if code != 5 || err != nil {
		b.Errorf("exec without streams: %d, %v; want 5", code, err)
	}
	// Many run at once.
	done := make(chan string)
	for range 8 {
		go func() {
			var out screen
			code, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"echo", "hi"}, Streams: oci.Streams{Stdout: &out}})
			if err != nil {
				done <- err.Error()
				return
			}
			done <- strconv.Itoa(code) + out.String()
		}()
	}
	for range 8 {
		if got := <-done; got != "0hi\n" {
			b.Errorf("one of many execs: %q", got)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(c.StateDir, "*", c.ID, "exec-*")); len(files) > 0 {
		b.Errorf("files left behind: %v", files)
	}
	c.isIn(oci.Running)
}

func execFails(b *subtest) {
	c := b.container("sleep", "1000").run()
	for _, test := range []struct {
		args []string
		code int
	}{
		{[]string{"nosuchprogram"}, 127},
		{[]string{"/bin/nosuchprogram"}, 127},
		{[]string{"/bin/notexecutable"}, 126},
	} {
		var out, stderr screen
		_, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: test.args, Streams: oci.Streams{Stdout: &out, Stderr: &stderr}})
		var refused *oci.StartError
		if !errors.As(err, &refused) || refused.Code != test.code || strings.Contains(err.Error(), "\n") {
			b.Errorf("exec of %v: %v, want a StartError with code %d", test.args, err, test.code)
		}
		if got := out.String() + stderr.String(); got != "" {
			b.Errorf("exec of %v: the client receives %q, want nothing", test.args, got)
		}
	}
	if _, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID}); !errdefs.IsInvalidArgument(err) {
		b.Errorf("exec without a command: %v, want an invalid argument", err)
	}
	b.must(c.Driver.KillAll(b.ctx(), c.ID))
	c.ends(137)
	if _, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"true"}}); !errdefs.IsFailedPrecondition(err) {
		b.Errorf("exec in an exited container: %v, want a failed precondition", err)
	}
	// The exit of the container kills the program.
	c = b.container("sleep", "1000").run()
	var out screen
	done := make(chan int, 1)
	go func() {
		code, _ := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"sh", "-c", "echo up; sleep 1000"}, Streams: oci.Streams{Stdout: &out}})
		done <- code
	}()
	b.eventually("the program runs", func() bool { return out.String() == "up\n" })
	b.must(c.Driver.Signal(b.ctx(), c.ID, 9))
	if code := <-done; code != 137 {
		b.Errorf("the program exited with %d, want 137", code)
	}
}

func execStdin(b *subtest) {
	c := b.container("sleep", "1000").run()
	var out screen
	input := strings.Repeat("0123456789", 50_000)
	code, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"sh", "-c", "cat; exit 4"}, Streams: oci.Streams{Stdin: strings.NewReader(input), Stdout: &out}})
	if code != 4 || err != nil || out.String() != input {
		b.Errorf("exec of cat: %d, %v, %d bytes of %d; want 4", code, err, len(out.String()), len(input))
	}
	// The program doesn't read its input.
	code, err = c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"true"}, Streams: oci.Streams{Stdin: strings.NewReader(input)}})
	if code != 0 || err != nil {
		b.Errorf("exec with unread input: %d, %v; want 0", code, err)
	}
	// The client doesn't close its input.
	reader, writer := io.Pipe()
	defer writer.Close()
	code, err = c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"true"}, Streams: oci.Streams{Stdin: reader}})
	if code != 0 || err != nil {
		b.Errorf("exec with open input: %d, %v; want 0", code, err)
	}
}

func execTerminal(b *subtest) {
	c := b.container("sleep", "1000").run()
	k := &client{c: c, resize: make(chan oci.Size), done: make(chan error, 1)}
	var stdin io.Reader
	stdin, k.stdin = io.Pipe()
	defer k.stdin.Close()
	codes := make(chan int, 1)
	go func() {
		code, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"sh", "-c", "tty; echo err >&2; echo $TERM; while read -r line; do echo got $line; stty size; done; exit 6"},
			Streams: oci.Streams{Stdin: stdin, Stdout: &k.stdout, Stderr: &k.stderr, TTY: true, Resize: k.resize}})
		codes <- code
		k.done <- err
	}()
	k.sees("/dev/pts/")
	k.sees("err\r\nxterm\r\n")
	k.resizes()
	// A driver may apply the last size after it has accepted the input that follows.
	b.eventually("the terminal has the last size", func() bool {
		seen := len(k.stdout.String())
		k.types("abc\n")
		k.seesAfter(seen, "got abc\r\n", "\r\n")
		return strings.Contains(k.stdout.String(), "got abc\r\n59 149\r\n")
	})
	k.types("\x04")
	k.returns(nil)
	if code := <-codes; code != 6 || k.stderr.String() != "" {
		b.Errorf("code %d, stderr %q", code, k.stderr.String())
	}
	// The end of the output isn't lost, however short the program runs.
	for range 10 {
		var out screen
		code, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"seq", "1000"}, Streams: oci.Streams{Stdout: &out, TTY: true}})
		if code != 0 || err != nil || !strings.HasSuffix(out.String(), "\n1000\r\n") {
			b.Errorf("exec of seq: %d, %v, output ends with %q", code, err, out.String()[max(len(out.String())-20, 0):])
		}
	}
	if _, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"nosuchprogram"}, Streams: oci.Streams{TTY: true}}); err == nil {
		b.Error("no error for a program that doesn't exist")
	}
}

// execChildren checks that Exec returns when the program exits, even if a child keeps its output
// open.
func execChildren(b *subtest) {
	c := b.container("sleep", "1000").run()
	start := time.Now()
	code, stdout, _ := c.exec("(sleep 1000; echo late) & echo first; exit 3")
	if code != 3 || stdout != "first\n" {
		b.Errorf("exec: %d, %q; want 3, first", code, stdout)
	}
	if took := time.Since(start); took > patience/2 {
		b.Errorf("exec took %v", took)
	}
	// The child belongs to the container and goes on running.
	if _, stdout, _ := c.exec("ps | grep -c '[s]leep 1000'"); strings.TrimSpace(stdout) == "0" {
		b.Error("the child was killed")
	}
}

func execTimeouts(b *subtest) {
	c := b.shell("echo ready; sleep 1000").run()
	c.says("ready")
	wantOnlyInit := func() {
		b.Helper()
		if pids, err := b.env.tree.PIDs(c.cgroup); err != nil || len(pids) != 1 {
			_, left, _ := c.exec("ps")
			b.Errorf("still running: %v, %v\n%s", pids, err, left)
		}
	}
	wantOnlyInit()
	// Each of these survives if only the program is killed, its process group, or all processes
	// that inherit an environment variable.
	script := `trap '' TERM HUP
		sleep 1001 &
		setsid sleep 1002 &
		env -i /bin/sleep 1003 &
		(setsid env -i /bin/sh -c '/bin/sleep 1004 & /bin/sleep 1005 & exec /bin/sleep 1006' &)
		(while :; do (sleep 0.02 &) ; sleep 0.005; done) &
		echo up
		sleep 1007`
	for _, tty := range []bool{false, true} {
		var out screen
		_, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"sh", "-c", script}, Timeout: 3 * time.Second, Streams: oci.Streams{Stdout: &out, TTY: tty}})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "3s") {
			b.Errorf("exec with a timeout: %v, want a timeout", err)
		}
		if got := strings.TrimSpace(out.String()); got != "up" {
			b.Errorf("the program wrote %q, want up", got)
		}
		wantOnlyInit()
	}
	// The timeout passes before the runtime has started the program.
	if _, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"sleep", "1000"}, Timeout: time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) {
		b.Errorf("exec with a short timeout: %v, want a timeout", err)
	}
	// When the client disconnects, the program is killed.
	ctx, cancel := context.WithCancel(b.ctx())
	var out screen
	done := make(chan error, 1)
	go func() {
		_, err := c.Driver.Exec(ctx, oci.Exec{ID: c.ID, Args: []string{"sh", "-c", "echo up; sleep 1000"}, Streams: oci.Streams{Stdout: &out}})
		done <- err
	}()
	b.eventually("the program runs", func() bool { return out.String() == "up\n" })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		b.Errorf("canceled exec: %v, want canceled", err)
	}
	wantOnlyInit()
	c.isIn(oci.Running)
}

// longPaths uses paths that are longer than the 107 bytes of a socket address.
func longPaths(b *subtest) {
	deep := filepath.Join(b.TempDir(), strings.Repeat("d", 100), strings.Repeat("e", 100))
	mkdir(b, deep)
	c := b.shell("read line; echo got $line; sleep 1000")
	b.must(os.Rename(c.Bundle, filepath.Join(deep, "bundle")))
	c.Bundle, c.Log = filepath.Join(deep, "bundle"), filepath.Join(deep, "log")
	c.Terminal, c.Stdin = true, true
	c.run()
	k := c.attach(true)
	k.types("abc\n")
	k.sees("got abc")
	k.leave()
	k.returns(context.Canceled)
	var out screen
	code, err := c.Driver.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"tty"}, Streams: oci.Streams{Stdout: &out, TTY: true}})
	if code != 0 || err != nil || !strings.HasPrefix(out.String(), "/dev/pts/") {
		b.Errorf("exec of tty: %d, %v, %q", code, err, out.String())
	}
}
