// Package node gives a test a machine of its own: namespaces in which huskd
// runs as it would on a host, with a /run that a reboot empties, an uplink to
// another host, and a count of everything that a test could leave behind.
//
// A test binary that uses it calls Main from its TestMain.
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
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/pod"
)

// Addresses of the node and of the other host on the wire between them.
const (
	Address4 = "198.51.100.1"
	Address6 = "2001:db8:51::1"
	Other4   = "198.51.100.2"
	Other6   = "2001:db8:51::2"
)

// prefix begins the names of the directories of nodes.
const prefix = "husk-node-"

// Node is a machine. Its directories are on the host's disk, so that they
// outlive a Reboot.
type Node struct {
	t     testing.TB
	Dir   string // of all that belongs to it
	Root  string // --root of its huskd
	State string // --state, on its /run
	CNI   string // --cni-conf-dir, which doesn't exist unless a test makes it
	boot  int
	init  *exec.Cmd
	ended chan struct{} // closed when init was killed
	other string        // path of the other host's network namespace
	base  Inventory
}

// New starts a machine, which ends with the test. The test fails if anything
// that Inventory counts is left at its end.
func New(t testing.TB) *Node {
	t.Helper()
	hosttest.Root(t)
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{t: t, Dir: dir, Root: filepath.Join(dir, "root"), State: "/run/husk", CNI: filepath.Join(dir, "cni"), other: filepath.Join(dir, "other-host")}
	t.Cleanup(n.end)
	if err := netns.Create(netns.Pins{Net: n.other}); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.base = n.Inventory()
	return n
}

// Instance is that of the node's huskd.
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
	cmd.Env = append(os.Environ(), initEnv+"="+bootID)
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
	n.wire()
}

// fork starts the node's init from a thread that stays until the node ends: the
// kernel sends Pdeathsig when the thread ends that forked, not its process.
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

// wire connects the node to the other host. The node's default route leads
// there.
func (n *Node) wire() {
	n.t.Helper()
	pid := strconv.Itoa(n.init.Process.Pid)
	other := func(args ...string) []string { return append([]string{"nsenter", "--net=" + n.other}, args...) }
	here := func(args ...string) []string { return append([]string{"nsenter", "-t", pid, "-n"}, args...) }
	// After a reboot the old namespace, and with it the link's old end, goes in
	// the background.
	gone := other("ip", "link", "del", "wire0")
	_ = exec.Command(gone[0], gone[1:]...).Run()
	for _, args := range [][]string{
		// A new namespace has the machine's own ip_forward. The node begins as a
		// fresh one does, and its router says of an address that it has no route.
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
	// The kernel gives the uplink its link-local route in its own time. It must
	// not look like something that a test left.
	Eventually(n.t, 10*time.Second, func() string {
		out, err := exec.Command("nsenter", "-t", pid, "-n", "ip", "-6", "route", "show", "fe80::/64", "dev", "up0").Output()
		if err != nil || len(out) == 0 {
			return "up0 has no link-local route"
		}
		return ""
	})
}

// Reboot ends everything on the node at once, as a power loss would, and
// starts it again with another boot ID and an empty /run.
func (n *Node) Reboot() {
	n.t.Helper()
	n.kill()
	n.start()
}

func (n *Node) kill() {
	if n.init == nil {
		return
	}
	_ = n.init.Process.Kill()
	_ = n.init.Wait()
	n.init = nil
	close(n.ended)
	// A host that boots has no cgroups but its own.
	for _, path := range n.cgroups() {
		removeCgroup(path)
	}
}

// removeCgroup waits for the killed processes of a cgroup to be gone.
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
	n.kill()
	if err := netns.Remove(n.other); err != nil {
		n.t.Error(err)
	}
	// The node's mounts went with its mount namespace.
	if err := os.RemoveAll(n.Dir); err != nil {
		n.t.Error(err)
	}
}

// Pid is that of the node's init on the host.
func (n *Node) Pid() int { return n.init.Process.Pid }

// Net is the path of the node's network namespace; OtherNet of the other host's.
func (n *Node) Net() string      { return fmt.Sprintf("/proc/%d/ns/net", n.Pid()) }
func (n *Node) OtherNet() string { return n.other }

// Path is how the host sees a path of the node.
func (n *Node) Path(path string) string { return fmt.Sprintf("/proc/%d/root%s", n.Pid(), path) }

// Command prepares a program to run on the node.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	full := append([]string{"-t", strconv.Itoa(n.Pid()), "-m", "-n", "-p", "-u", "-i", "--", name}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", full...)
	// nsenter waits for the program as its parent, and would not take it along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Result is how a program ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs a program on the node to its end.
func (n *Node) Run(name string, args ...string) Result {
	n.t.Helper()
	return n.result(func(ctx context.Context) *exec.Cmd { return n.Command(ctx, name, args...) })
}

// RunOther runs a program on the other host to its end.
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

// Must runs a program on the node, which must succeed, and returns its output.
func (n *Node) Must(name string, args ...string) string {
	n.t.Helper()
	r := n.Run(name, args...)
	if r.Code != 0 {
		n.t.Fatalf("%s %s: exit code %d\n%s%s", name, strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Eventually waits for ok, which tells what it still waits for.
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
