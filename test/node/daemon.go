package node

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

var binaries struct {
	sync.Mutex
	dir string
}

// Binary builds a command of Husk with its crash points, once per test binary, and returns its
// path. Where there is no Go toolchain, HUSK_TEST_BINARIES names a directory of such commands.
func (n *Node) Binary(name string) string {
	n.t.Helper()
	if dir := os.Getenv("HUSK_TEST_BINARIES"); dir != "" {
		return filepath.Join(dir, name)
	}
	binaries.Lock()
	defer binaries.Unlock()
	if binaries.dir == "" {
		dir, err := os.MkdirTemp("", "husk-bin-")
		if err != nil {
			n.t.Fatal(err)
		}
		binaries.dir = dir
	}
	path := filepath.Join(binaries.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cmd := exec.Command("go", "build", "-tags", "crashpoint", "-o", path, "github.com/huskd/husk/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

func removeBinaries() {
	if binaries.dir != "" {
		_ = os.RemoveAll(binaries.dir)
	}
}

// Daemon is a running huskd.
type Daemon struct {
	n    *Node
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	// Ready is how long it took from exec to serving.
	Ready time.Duration
}

// Option changes how huskd is started.
type Option func(*exec.Cmd)

// Env sets a variable of huskd's environment.
func Env(name, value string) Option {
	return func(c *exec.Cmd) { c.Env = append(c.Env, name+"="+value) }
}

// Flags adds flags.
func Flags(flags ...string) Option {
	return func(c *exec.Cmd) { c.Args = append(c.Args, flags...) }
}

// Launch starts huskd on the node without waiting until it serves.
func (n *Node) Launch(options ...Option) *Daemon {
	n.t.Helper()
	cmd := n.Command(context.Background(), n.Binary("huskd"), "--root", n.Root, "--state", n.State, "--certs-dir", filepath.Join(n.Dir, "certs.d"), "--cni-conf-dir", n.CNI, "--config", "/dev/null")
	cmd.Env = os.Environ()
	// A file, because output in a pipe could still be in transit when huskd serves.
	log, err := os.CreateTemp("", "husk-log-")
	if err != nil {
		n.t.Fatal(err)
	}
	_ = os.Remove(log.Name())
	d := &Daemon{n: n, cmd: cmd, log: log, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = d.log, d.log
	for _, o := range options {
		o(cmd)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(d.done)
	}()
	n.t.Cleanup(func() {
		d.Kill()
		if n.t.Failed() {
			n.t.Logf("huskd's log:\n%s", d.Log())
		}
		_ = log.Close()
	})
	return d
}

// Huskd starts huskd on the node and waits until it serves.
func (n *Node) Huskd(options ...Option) *Daemon {
	n.t.Helper()
	began := time.Now()
	d := n.Launch(options...)
	Eventually(n.t, time.Minute, func() string {
		select {
		case <-d.done:
			n.t.Fatalf("huskd exited:\n%s", d.Log())
		default:
		}
		if n.Serves() {
			return ""
		}
		return "huskd doesn't serve"
	})
	d.Ready = time.Since(began)
	return d
}

// Socket returns the path of huskd's socket on the host.
func (n *Node) Socket() string { return n.Path(filepath.Join(n.State, "husk.sock")) }

// preface is the HTTP/2 connection preface, RFC 9113, section 3.4.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Serves reports whether huskd answers. huskd listens earlier than that, so that no client is
// refused.
func (n *Node) Serves() bool {
	conn, err := net.Dial("unix", n.Socket())
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, preface); err != nil {
		return false
	}
	_, err = conn.Read(make([]byte, 1))
	return err == nil
}

// Log returns what huskd has logged so far.
func (d *Daemon) Log() string {
	text, err := io.ReadAll(io.NewSectionReader(d.log, 0, math.MaxInt64))
	if err != nil {
		d.n.t.Errorf("huskd's log: %v", err)
	}
	return string(text)
}

// Pid returns huskd's PID on the host.
func (d *Daemon) Pid() int {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", d.cmd.Process.Pid, d.cmd.Process.Pid))
	pid := d.cmd.Process.Pid
	_, _ = fmt.Sscan(string(children), &pid)
	return pid
}

// Signal sends a signal to huskd itself, not to the nsenter around it. If huskd has exited, it does
// nothing: another process may have its PID by now.
func (d *Daemon) Signal(sig syscall.Signal) {
	select {
	case <-d.done:
	default:
		_ = syscall.Kill(d.Pid(), sig)
	}
}

// Kill kills huskd with SIGKILL.
func (d *Daemon) Kill() {
	d.Signal(syscall.SIGKILL)
	d.Wait(10 * time.Second)
}

// Stop terminates huskd with SIGTERM, which leaves pods running.
func (d *Daemon) Stop() {
	d.n.t.Helper()
	d.Signal(syscall.SIGTERM)
	if !d.Wait(30 * time.Second) {
		d.n.t.Fatalf("huskd doesn't exit on SIGTERM:\n%s", d.Log())
	}
}

// Wait waits for huskd to exit and reports whether it did.
func (d *Daemon) Wait(within time.Duration) bool {
	select {
	case <-d.done:
		return true
	case <-time.After(within):
		return false
	}
}

// Code waits for huskd to exit and returns its exit code.
func (d *Daemon) Code() int {
	<-d.done
	return d.cmd.ProcessState.ExitCode()
}

// Husk runs the command husk against the node's huskd.
func (n *Node) Husk(args ...string) Result {
	n.t.Helper()
	return n.Run(n.Binary("husk"), append([]string{"--socket", "unix://" + n.State + "/husk.sock"}, args...)...)
}

// MustHusk is like Husk, but fails the test if the command fails. It returns the output.
func (n *Node) MustHusk(args ...string) string {
	n.t.Helper()
	r := n.Husk(args...)
	if r.Code != 0 {
		n.t.Fatalf("husk %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
