package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/testimage"
)

const module = "github.com/huskd/husk/"

// TestCgroupV2 runs tests in a machine whose kernel has cgroup v2 and loads modules on demand:
// package guest and the packages that use cgroups, or links of kinds that hosts may lack. It runs
// them first with a minimal init, then with systemd as init.
func TestCgroupV2(t *testing.T) {
	hosttest.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	began := time.Now()
	root, kernel := NewInitrd(), Kernel{}
	dir := t.TempDir()
	inParallel(t, func() (err error) {
		kernel, err = FindKernel(ctx)
		return err
	}, func() error { return build(ctx, dir) })
	if err := fill(ctx, root, kernel, dir); err != nil {
		t.Fatal(err)
	}
	t.Logf("built after %v", time.Since(began).Round(time.Millisecond))
	outcomes, console, err := Machine{Kernel: kernel, Root: root, Dir: dir}.Run(ctx, func(line string) {
		if testing.Verbose() {
			fmt.Println("  vm:", line)
		}
	})
	t.Logf("the machine has ended after %v", time.Since(began).Round(time.Millisecond))
	if err != nil || len(outcomes) != len(testPrograms)+len(systemdPrograms) {
		t.Errorf("%d programs of %d ran: %v; the kernel said:\n%s", len(outcomes), len(testPrograms)+len(systemdPrograms), err, console)
	}
	for _, o := range outcomes {
		t.Run(o.Program, func(t *testing.T) {
			if o.Code != "0" {
				t.Errorf("exit code %s:\n%s", o.Code, o.Output)
			}
			for line := range strings.Lines(o.Output) {
				if strings.HasPrefix(line, "--- ") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

// program is a package's test binary and the arguments that select its tests.
type program struct{ name, pkg, choice string }

// testPrograms are the packages whose tests run in the machine. Guest comes first, to see the
// kernel freshly booted.
var testPrograms = []program{
	{"guest", "test/vm/guest", "-test.skip=^TestSystemd$"},
	{"cgroup", "internal/cgroup", ""},
	{"host", "internal/host", ""},
	{"pidfd", "internal/pidfd", ""},
	{"overlay", "internal/network/overlay", "-test.run=^(TestWays|TestHealing|TestLinkChanges|TestRotation)$/^(ipip|wireguard|wireguard_over_IPv6)$"},
	{"monitor", "internal/oci/monitor", "-test.run=Conformance/^(out_of_memory|processes_left_behind)$"},
}

// systemdPrograms run once systemd is init.
var systemdPrograms = []program{{"systemd", "test/vm/guest", "-test.run=^TestSystemd$"}}

// build builds our programs for the machine.
func build(ctx context.Context, dir string) error {
	commands := [][]string{
		{"build", "-o", filepath.Join(dir, "init"), module + "test/vm/init"},
		{"build", "-ldflags", "-s -w", "-tags", "crashpoint", "-o", filepath.Join(dir, "huskd"), module + "cmd/huskd"},
		{"build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "husk"), module + "cmd/husk"},
	}
	for _, p := range testPrograms {
		commands = append(commands, []string{"test", "-c", "-ldflags", "-s -w", "-tags", "vm", "-o", filepath.Join(dir, p.name), module + p.pkg})
	}
	for _, args := range commands {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// binary returns the path of a program in the machine.
func binary(p program) string { return "/usr/lib/husk/" + p.name }

// list returns the lines for programs in a file that init reads.
func list(programs []program) (out []byte) {
	for _, p := range programs {
		out = fmt.Appendf(out, "%s -test.v -test.timeout=12m %s\n", binary(p), p.choice)
	}
	return out
}

// fill adds everything to the root.
func fill(ctx context.Context, root *Initrd, kernel Kernel, dir string) error {
	for name, host := range map[string]string{"/init": "init", "/usr/local/bin/huskd": "huskd", "/usr/local/bin/husk": "husk"} {
		if err := root.Copy(name, filepath.Join(dir, host)); err != nil {
			return err
		}
	}
	for _, p := range testPrograms {
		if err := root.Copy(binary(p), filepath.Join(dir, p.name)); err != nil {
			return err
		}
	}
	root.File(Programs, 0o644, list(testPrograms))
	if err := addSystemd(root); err != nil {
		return err
	}
	for _, program := range []string{
		"runc", "crun", "conmon", "modprobe", // what a node has
		"mkfs.ext4",                                                    // for a file system whose owners can be mapped
		"criu", "iptables-restore", "ip6tables-restore", "tar", "gzip", // what checkpoints need
		"bridge", "busybox", "sh", "cat", "hostname", "ip", "nft", "nsenter", "setsid", "sleep", "sysctl", // what tests use
	} {
		if err := root.Program(program); err != nil {
			return err
		}
	}
	// CRIU blocks a container's packets with iptables, which loads these: targets too.
	extensions, err := filepath.Glob("/usr/lib/*-linux-gnu/xtables/libxt_*.so")
	if err != nil {
		return err
	}
	for _, path := range extensions {
		if err := root.Copy(path, path); err != nil {
			return err
		}
	}
	err = kernel.AddModules(root, "kernel/fs/overlayfs/", "kernel/net/netfilter/", "kernel/net/ipv4/", "kernel/net/ipv6/", "kernel/net/bridge/", "kernel/drivers/net/veth",
		"kernel/drivers/net/vxlan/", "kernel/drivers/net/wireguard/",
		"kernel/drivers/block/loop", "kernel/fs/quota/", "kernel/net/unix/", "kernel/net/packet/", "kernel/net/netlink/") // by which CRIU lists sockets
	if err != nil {
		return err
	}
	for name, body := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/tmp:/bin/sh\nmessagebus:x:100:100::/nonexistent:/usr/sbin/nologin\n", "/etc/group": "root:x:0:\nmessagebus:x:100:\n",
		// This is what libc-bin's ldd does, which is a bash script.
		"/usr/bin/ldd": "#!/bin/sh\nexec /lib64/ld-linux-x86-64.so.2 --list \"$@\"\n",
		"/etc/hosts":   "127.0.0.1 localhost\n", "/etc/resolv.conf": "nameserver 192.0.2.53\n",
	} {
		root.File(name, 0o755, []byte(body))
	}
	image, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web, Compression: testimage.Uncompressed})
	if err != nil {
		return err
	}
	var archive strings.Builder
	if err := testimage.WriteArchive(&archive, testimage.Named{Image: image, Names: []string{"localhost/web:1"}}); err != nil {
		return err
	}
	root.File("/web.tar", 0o644, []byte(archive.String()))
	return nil
}

func inParallel(t *testing.T, tasks ...func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, task := range tasks {
		wg.Go(func() {
			if err := task(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}
