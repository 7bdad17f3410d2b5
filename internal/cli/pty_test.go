package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/cli/huskdtest"
)

// pty is a pseudoterminal that husk runs on.
type pty struct {
	t      *testing.T
	user   *os.File // the side of the user: keys and output
	screen *os.File // the side of husk
	before unix.Termios
	stdout *os.File // husk's standard output if not the screen

	mu   sync.Mutex
	seen bytes.Buffer
	cmd  *exec.Cmd
	read chan struct{} // closed when all output was read
}

// newPTY opens a pseudoterminal.
func newPTY(t *testing.T, width, height int) *pty {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	fd := int(user.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	p := &pty{t: t, user: user, screen: screen, read: make(chan struct{})}
	p.resize(width, height)
	p.before = p.modes()
	return p
}

func (p *pty) resize(width, height int) {
	p.t.Helper()
	size := &unix.Winsize{Col: uint16(width), Row: uint16(height)}
	if err := unix.IoctlSetWinsize(int(p.user.Fd()), unix.TIOCSWINSZ, size); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pty) modes() unix.Termios {
	p.t.Helper()
	modes, err := unix.IoctlGetTermios(int(p.screen.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *modes
}

func (p *pty) isRaw() bool {
	m := p.modes()
	return m.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) == 0
}

// isRead reports whether the program waits for keys: one of its threads is in read(0, …).
func (p *pty) isRead() bool {
	calls, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.cmd.Process.Pid))
	for _, file := range calls {
		call, _ := os.ReadFile(file)
		if bytes.HasPrefix(call, fmt.Appendf(nil, "%d 0x0 ", unix.SYS_READ)) {
			return true
		}
	}
	return false
}

// start runs a program on the terminal as the leader of a new session.
func (p *pty) start(env []string, name string, args ...string) {
	p.t.Helper()
	p.cmd = exec.Command(name, args...)
	p.cmd.Env = append(os.Environ(), append([]string{"TERM=xterm", "NO_COLOR=", "LC_ALL=C.UTF-8"}, env...)...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.screen, p.screen, p.screen
	if p.stdout != nil {
		p.cmd.Stdout = p.stdout
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	go func() {
		defer close(p.read)
		buf := make([]byte, 4096)
		for {
			n, err := p.user.Read(buf)
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
}

func (p *pty) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// until waits for a condition.
func (p *pty) until(what string, done func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("no %s; the terminal got:\n%q", what, p.output())
		}
	}
}

// expect waits for text on the terminal.
func (p *pty) expect(text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%q", text), func() bool { return strings.Contains(p.output(), text) })
}

func (p *pty) typeKeys(keys string) {
	p.t.Helper()
	if _, err := io.WriteString(p.user, keys); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for the program's exit, checks that the terminal was restored, and returns the exit
// code and all output.
func (p *pty) end() (code int, output string) {
	p.t.Helper()
	err := p.cmd.Wait()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		p.t.Fatal(err)
	}
	if after := p.modes(); after != p.before {
		p.t.Errorf("the terminal's modes are %+v, want %+v", after, p.before)
	}
	p.screen.Close()
	<-p.read
	return p.cmd.ProcessState.ExitCode(), p.output()
}

// serve starts a huskd and returns it with the environment of its clients.
func serve(t *testing.T, manifests ...string) (*huskdtest.Huskd, []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "husk") // the path of t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := huskdtest.New()
	socket := filepath.Join(dir, "husk.sock")
	if err := h.Listen(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	env := []string{"HUSK_SOCKET=" + socket}
	for i, m := range manifests {
		file := filepath.Join(dir, fmt.Sprintf("%d.yaml", i))
		if err := os.WriteFile(file, []byte(m), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("husk", "run", "--wait", file)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return h, env
}

// web returns the manifest of a pod with a program that has a terminal if tty is set.
func web(command string, tty bool) string {
	return fmt.Sprintf("{kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, image: localhost/web:latest, command: [%s], stdin: true, tty: %v}]}}", command, tty)
}
