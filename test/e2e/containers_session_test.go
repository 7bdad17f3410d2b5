package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/test/node"
)

// husk returns a husk command that isn't started yet.
func husk(t *testing.T, n *node.Node, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return n.Command(ctx, n.Binary("husk"), append([]string{"--socket", "unix://" + n.State + "/husk.sock"}, args...)...)
}

// TestExec runs commands in a running container, with and without a terminal.
func TestExec(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	n.MustHusk("run", "--wait", write(t, n, "pod.yaml", podOf("two",
		"containers: [{name: a, image: 'localhost/web:1', env: [{name: WORD, value: hello}], workingDir: /www, command: "+shell("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")+"},"+
			"{name: b, image: 'localhost/web:1', securityContext: {runAsUser: 33}, command: "+shell("trap 'exit 0' TERM; sleep 1000 & wait")+"}]")))
	for _, c := range []struct {
		args           []string
		stdin          string
		code           int
		stdout, stderr string
	}{
		{[]string{"two", "-c", "a", "--", "sh", "-c", "echo $WORD; pwd; echo wrong >&2; exit 3"}, "", 3, "hello\n/www\n", "wrong\n"},
		{[]string{"two", "-c", "b", "--", "id", "-u"}, "", 0, "33\n", ""},
		{[]string{"default/two", "-c", "a", "--", "sh", "-c", "kill -9 $$"}, "", 137, "", ""},
		{[]string{"two", "-c", "a", "--", "sh", "-c", "kill -TERM $$"}, "", 143, "", ""},
		{[]string{"-i", "two", "-c", "a", "--", "tr", "a-z", "A-Z"}, "some words", 0, "SOME WORDS", ""},
		{[]string{"-i", "two", "-c", "a", "--", "sh", "-c", "head -c1 >/dev/null; echo enough"}, strings.Repeat("x", 1<<20), 0, "enough\n", ""},
		{[]string{"two", "-c", "a", "--", "cat"}, "not passed on", 0, "", ""},
		{[]string{"two", "-c", "a", "--", "absent"}, "", 127, "", `.*"?absent"?.*not found.*\n`},
		{[]string{"two", "-c", "a", "--", "/www"}, "", 126, "", `.*denied.*\n|.*directory.*\n`},
		{[]string{"two", "-c", "a", "--", "grep", "-c", "^Seccomp:\t2$", "/proc/self/status"}, "", 0, "1\n", ""},
		{[]string{"-t", "two", "-c", "a", "--", "sh", "-c", "test -t 1 && echo terminal"}, "", 0, "terminal\r\n", ""},
	} {
		cmd := husk(t, n, append([]string{"exec"}, c.args...)...)
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &out, &errs
		_ = cmd.Run()
		code := cmd.ProcessState.ExitCode()
		if code != c.code || out.String() != c.stdout || !regexp.MustCompile("^(?:"+c.stderr+")$").MatchString(errs.String()) {
			t.Errorf("exec %q: %d\n%s%s", c.args, code, out.String(), errs.String())
		}
	}
	// A megabyte of output is complete.
	if out := n.MustHusk("exec", "two", "-c", "a", "--", "sh", "-c", "head -c 1000000 /dev/zero"); len(out) != 1000000 {
		t.Errorf("got %d of 1000000 bytes", len(out))
	}
	n.MustHusk("rm", "-f", "two")
	d.Stop()
	n.NothingLeft()
}

// screen is a terminal in which husk runs.
type screen struct {
	t    *testing.T
	user *os.File // the user's end of the pty
	cmd  *exec.Cmd
	mu   sync.Mutex
	seen strings.Builder
}

func newScreen(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	s := &screen{t: t, user: user, cmd: cmd}
	s.resize(80, 24)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			k, err := user.Read(buf)
			s.mu.Lock()
			s.seen.Write(buf[:k])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) resize(width, height uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) send(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.user, text); err != nil {
		s.t.Fatal(err)
	}
}

// expect waits until the screen has shown a text.
func (s *screen) expect(want string) {
	s.t.Helper()
	node.Eventually(s.t, 20*time.Second, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if strings.Contains(s.seen.String(), want) {
			return ""
		}
		return fmt.Sprintf("the screen shows %q, want %q in it", s.seen.String(), want)
	})
}

// wait waits for husk to end and returns its exit code.
func (s *screen) wait() int {
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// TestTerminal uses exec and attach interactively, in a terminal.
func TestTerminal(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	n.MustHusk("run", "--wait", write(t, n, "pod.yaml", podOf("shell", only("tty: true, stdin: true, command: "+shell("PS1='own> ' exec sh")))))
	s := newScreen(t, husk(t, n, "exec", "-it", "shell", "--", "sh"))
	s.send("stty size\n")
	s.expect("24 80\r\n")
	s.resize(132, 50)
	// The new size takes a moment to arrive.
	s.send("until [ \"$(stty size)\" = '50 132' ]; do sleep 0.1; done; echo re''sized\n")
	s.expect("resized\r\n")
	s.send("sh -c 'trap \"echo inter\"\"rupted; exit 3\" INT; echo be\"\"fore; while :; do sleep 0.1; done'; echo co''de $?\n")
	s.expect("before\r\n")
	s.send("\x03")
	s.expect("interrupted\r\ncode 3\r\n")
	s.send("exit 7\n")
	if code := s.wait(); code != 7 {
		t.Errorf("exec ended with %d, want 7", code)
	}

	s = newScreen(t, husk(t, n, "attach", "shell"))
	s.send("echo att''ached\n")
	s.expect("attached\r\n")
	s.send("\x10\x11") // ctrl-p ctrl-q
	s.expect("detached: husk attach shell reattaches")
	if code := s.wait(); code != 0 {
		t.Errorf("attach ended with %d after detaching", code)
	}
	if p := findPod(t, n, "shell"); !p.Ready || p.Containers[0].Restarts > 0 {
		t.Errorf("after detaching, the pod is %+v", p)
	}
	s = newScreen(t, husk(t, n, "attach", "shell"))
	s.send("exit 5\n")
	if code := s.wait(); code != 5 {
		t.Errorf("attach ended with %d, want the program's exit code 5", code)
	}
	node.Eventually(t, 20*time.Second, func() string {
		if p := findPod(t, n, "shell"); p.Ready && p.Containers[0].Restarts == 1 {
			return ""
		}
		return "the container isn't restarted"
	})
	if out := n.MustHusk("logs", "--previous", "shell"); !strings.Contains(out, "attached") {
		t.Errorf("the log of the previous run is %q", out)
	}
	n.MustHusk("rm", "-f", "shell")
	d.Stop()
	n.NothingLeft()
}

// TestLogs reads containers' logs with all flags of husk logs.
func TestLogs(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	n.MustHusk("run", "--wait", write(t, n, "pod.yaml", podOf("talker", "volumes: [{name: v, emptyDir: {}}], containers: ["+
		"{name: a, image: 'localhost/web:1', volumeMounts: [{name: v, mountPath: /v}], command: "+
		shell("trap 'exit 0' TERM; for i in 1 2 3; do echo line $i; done; echo wrong >&2; until test -e /v/long; do sleep 0.1; done; head -c 40000 /dev/zero | tr '\\0' x; echo; until test -e /v/go; do sleep 0.1; done; echo late; sleep 1000 & wait")+"},"+
		"{name: b, image: 'localhost/web:1', volumeMounts: [{name: v, mountPath: /v}], command: "+shell("trap 'exit 0' TERM; echo other; sleep 1000 & wait")+"}]")))
	long := strings.Repeat("x", 40000)
	node.Eventually(t, 20*time.Second, func() string {
		if r := n.Husk("logs", "talker", "-c", "a"); r.Stdout != "line 1\nline 2\nline 3\n" || r.Stderr != "wrong\n" {
			return fmt.Sprintf("the log is %.200q and %q", r.Stdout, r.Stderr)
		}
		return ""
	})
	// Conmon may read stdout and stderr in either order. From here on, the container only writes to
	// stdout.
	n.MustHusk("exec", "talker", "-c", "b", "--", "touch", "/v/long")
	node.Eventually(t, 20*time.Second, func() string {
		if r := n.Husk("logs", "talker", "-c", "a"); r.Stdout != "line 1\nline 2\nline 3\n"+long+"\n" || r.Stderr != "wrong\n" {
			return fmt.Sprintf("the log is %.200q and %q", r.Stdout, r.Stderr)
		}
		return ""
	})
	if r := n.Husk("logs", "talker"); r.Code != 1 || r.Stderr != "husk: pod default/talker has the containers a, b: choose one with -c\n" {
		t.Errorf("without -c, husk logs says %q", r.Stderr)
	}
	node.Eventually(t, 20*time.Second, func() string {
		if out := n.MustHusk("logs", "talker", "-c", "b", "--timestamps"); !regexp.MustCompile(`^20\d\d-\S+Z other\n$`).MatchString(out) {
			return fmt.Sprintf("with timestamps the log is %q", out)
		}
		return ""
	})
	if r := n.Husk("logs", "--tail", "3", "talker", "-c", "a"); r.Stdout != "line 3\n"+long+"\n" || r.Stderr != "wrong\n" {
		t.Errorf("--tail 3 returns %.200q and %q", r.Stdout, r.Stderr)
	}
	if out := n.MustHusk("logs", "--tail", "0", "talker", "-c", "a"); out != "" {
		t.Errorf("--tail 0 returns %q", out)
	}
	if out := n.MustHusk("logs", "--since", "2099-01-01T00:00:00Z", "talker", "-c", "a"); out != "" {
		t.Errorf("--since 2099 returns %q", out)
	}
	follow := husk(t, n, "logs", "-f", "--tail", "1", "talker", "-c", "a")
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len(long)+1)
	if _, err := io.ReadFull(out, first); err != nil || string(first) != long+"\n" {
		t.Errorf("logs -f begins with %.100q, %v", first, err)
	}
	n.MustHusk("exec", "talker", "-c", "b", "--", "touch", "/v/go")
	late := make([]byte, len("late\n"))
	if _, err := io.ReadFull(out, late); err != nil || string(late) != "late\n" {
		t.Errorf("logs -f continues with %q, %v", late, err)
	}
	// logs -f ends with the container.
	n.MustHusk("stop", "talker")
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("logs -f ends with %q, %v", rest, err)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
	if out := n.MustHusk("logs", "--tail", "1", "talker", "-c", "a"); out != "late\n" {
		t.Errorf("the log of the stopped pod ends with %q", out)
	}
	n.MustHusk("rm", "talker")
	d.Stop()
	n.NothingLeft()
}
