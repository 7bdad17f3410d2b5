// Package node provides a test with a host of its own: namespaces in which huskd runs as on a real
// host, with a /run that a reboot empties, an uplink to another host, and an inventory of
// everything that a test could leave behind.
//
// A test binary that uses it calls Main from TestMain.
package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/pod"
)

// Addresses of the node and the other host on the link between them.
const (
	Address4 = "198.51.100.1"
	Address6 = "2001:db8:51::1"
	Other4   = "198.51.100.2"
	Other6   = "2001:db8:51::2"
)

// prefix is the prefix of nodes' directories.
const prefix = "husk-node-"

// Node is a host made of namespaces. Its directories are on the real host's disk, so that they
// survive a Reboot.
type Node struct {
	t     testing.TB
	Dir   string // contains all its files
	Root  string // --root of its huskd
	State string // --state, on its /run
	CNI   string // --cni-conf-dir, which doesn't exist unless a test makes it
	boot  int
	name  string
	init  *exec.Cmd
	ended chan struct{} // closed when init has been killed
	other string        // path of the other host's network namespace
	base  Inventory
	// Uplink is the node's link to a segment. It is nil for a node of New.
	Uplink *Uplink
}

// New starts a node, which ends with the test. The test fails if anything that Inventory counts is
// left at the end.
func New(t testing.TB) *Node {
	t.Helper()
	return newNode(t, "node", nil)
}

// newNode starts a node with an uplink to a segment or, without one, to another host of its own.
func newNode(t testing.TB, name string, uplink *Uplink) *Node {
	t.Helper()
	hosttest.Root(t)
	var other string
	if uplink != nil {
		other = uplink.Segment.u.Net()
	} else {
		other = newNamespace(t).path
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{t: t, Dir: dir, Root: filepath.Join(dir, "root"), State: "/run/husk", CNI: filepath.Join(dir, "cni"), name: name, other: other, Uplink: uplink}
	t.Cleanup(n.end)
	n.start()
	n.base = *n.Inventory()
	return n
}

// Instance returns the instance of the node's huskd.
func (n *Node) Instance() pod.Instance { return pod.InstanceOf(n.Root) }

func (n *Node) start() {
	n.t.Helper()
	n.boot++
	bootID := filepath.Join(n.Dir, "boot_id")
	if err := os.WriteFile(bootID, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", n.boot), 0o444); err != nil {
		n.t.Fatal(err)
	}
	ready, report, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	defer ready.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), initEnv+"="+bootID, nameEnv+"="+n.name)
	cmd.ExtraFiles = []*os.File{report}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	err = n.fork(cmd)
	_ = report.Close()
	if err != nil {
		n.t.Fatal(err)
	}
	n.init = cmd
	if msg := make([]byte, 2); func() bool { k, _ := ready.Read(msg); return string(msg[:k]) != "ok" }() {
		n.t.Fatal("node: init did not come up")
	}
	if n.Uplink != nil {
		n.Uplink.plug(n.Net())
		n.Uplink.settle()
	} else {
		n.wire()
	}
}

// fork starts the node's init from a thread that lives as long as the node: the kernel sends
// Pdeathsig when the forking thread ends, not its process.
func (n *Node) fork(cmd *exec.Cmd) error {
	started := make(chan error)
	n.ended = make(chan struct{})
	go func() {
		runtime.LockOSThread()
		started <- cmd.Start()
		<-n.ended
	}()
	return <-started
}

// wire connects the node to the other host, which is the node's default gateway.
func (n *Node) wire() {
	n.t.Helper()
	pid := strconv.Itoa(n.init.Process.Pid)
	other := func(args ...string) []string { return append([]string{"nsenter", "--net=" + n.other}, args...) }
	here := func(args ...string) []string { return append([]string{"nsenter", "-t", pid, "-n"}, args...) }
	// After a reboot, the kernel removes the old namespace and its end of the link in the background.
	gone := other("ip", "link", "del", "wire0")
	_ = exec.Command(gone[0], gone[1:]...).Run()
	for _, args := range [][]string{
		// A new namespace inherits the host's ip_forward. Reset it: a fresh host doesn't forward, and
		// its router reports unknown destinations as unreachable.
		here("sysctl", "-qw", "net.ipv4.ip_forward=0"),
		other("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"),
		here("ip", "link", "add", "up0", "type", "veth", "peer", "name", "wire0"),
		here("sysctl", "-qw", "net.ipv6.conf.up0.accept_dad=0"),
		here("ip", "address", "add", Address4+"/24", "dev", "up0"),
		here("ip", "address", "add", Address6+"/64", "dev", "up0", "nodad"),
		here("ip", "link", "set", "wire0", "netns", n.other),
		here("ip", "link", "set", "up0", "up"),
		other("ip", "address", "add", Other4+"/24", "dev", "wire0"),
		other("ip", "address", "add", Other6+"/64", "dev", "wire0", "nodad"),
		other("ip", "link", "set", "wire0", "up"),
		here("ip", "route", "add", "default", "via", Other4),
		here("ip", "-6", "route", "add", "default", "via", Other6),
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			n.t.Fatalf("node: %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	// The kernel adds the uplink's link-local route later. Wait for it, or it would look like
	// something that the test left.
	Eventually(n.t, 10*time.Second, func() string {
		out, err := exec.Command("nsenter", "-t", pid, "-n", "ip", "-6", "route", "show", "fe80::/64", "dev", "up0").Output()
		if err != nil || len(out) == 0 {
			return "up0 has no link-local route"
		}
		return ""
	})
}

// Reboot is PowerOff, and then the node starts again with another boot ID and an empty /run.
func (n *Node) Reboot() {
	n.t.Helper()
	n.PowerOff()
	n.start()
}

// PowerOff kills everything on the node at once, as a power loss would.
func (n *Node) PowerOff() {
	if n.init == nil {
		return
	}
	_ = n.init.Process.Kill()
	_ = n.init.Wait()
	n.init = nil
	close(n.ended)
	// A host that boots has no cgroups of pods.
	for _, path := range n.cgroups() {
		removeCgroup(path)
	}
}

// removeCgroup removes a cgroup once its killed processes are gone.
func removeCgroup(path string) {
	for range 200 {
		if err := syscall.Rmdir(path); err == nil || errors.Is(err, syscall.ENOENT) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (n *Node) end() {
	n.t.Helper()
	if n.init != nil && !n.t.Failed() {
		n.NothingLeft()
	}
	n.PowerOff()
	// The node's mounts have gone with its mount namespace.
	if err := os.RemoveAll(n.Dir); err != nil {
		n.t.Error(err)
	}
}

// Pid returns the PID of the node's init on the real host.
func (n *Node) Pid() int { return n.init.Process.Pid }

// Net returns the path of the node's network namespace.
func (n *Node) Net() string { return fmt.Sprintf("/proc/%d/ns/net", n.Pid()) }

// OtherNet returns the path of the other host's network namespace, or that of the router.
func (n *Node) OtherNet() string { return n.other }

// Path returns the path on the real host of a path on the node.
func (n *Node) Path(path string) string { return fmt.Sprintf("/proc/%d/root%s", n.Pid(), path) }

// Command prepares a program to run on the node.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	full := append([]string{"-t", strconv.Itoa(n.Pid()), "-m", "-n", "-p", "-u", "-i", "--", name}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", full...)
	// nsenter forks and waits for the program: killing only nsenter would leave the program running.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Result is a finished program's output and exit code.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs a program on the node and waits for it.
func (n *Node) Run(name string, args ...string) Result {
	n.t.Helper()
	return n.result(func(ctx context.Context) *exec.Cmd { return n.Command(ctx, name, args...) })
}

// RunOther runs a program on the other host and waits for it.
func (n *Node) RunOther(name string, args ...string) Result {
	n.t.Helper()
	return n.result(func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + n.other, "--", name}, args...)...)
	})
}

func (n *Node) result(command func(context.Context) *exec.Cmd) Result {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := command(ctx)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatalf("%v: %v", cmd.Args, err)
	}
	if ctx.Err() != nil {
		n.t.Fatalf("%v: takes too long\n%s%s", cmd.Args, out.String(), errs.String())
	}
	return Result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// Must runs a program on the node and returns its output. It fails the test if the program fails.
func (n *Node) Must(name string, args ...string) string {
	n.t.Helper()
	r := n.Run(name, args...)
	if r.Code != 0 {
		n.t.Fatalf("%s %s: exit code %d\n%s%s", name, strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Eventually calls ok until it returns "", and fails the test after within with what ok returned
// last.
func Eventually(t testing.TB, within time.Duration, ok func() (waitingFor string)) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		what := ok()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", within, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
