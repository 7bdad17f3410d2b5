//go:build vm

package guest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/node"
)

// TestSystemd runs huskd as a unit of the machine's systemd, which creates the cgroups of
// containers whose pods are in slices, and restarts huskd and systemd. It uses no node, because
// systemd knows processes by their PIDs in the machine's own PID namespace.
func TestSystemd(t *testing.T) {
	hosttest.Root(t)
	if comm, err := os.ReadFile("/proc/1/comm"); string(comm) != "systemd\n" {
		t.Fatalf("init is %q: %v", comm, err)
	}
	began := time.Now()
	done := func(what string) {
		t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	nameDevices(t)
	h := host{t}
	before := h.traces()
	h.systemctl("start", "huskd")
	t.Cleanup(func() {
		if t.Failed() {
			journal, err := exec.Command("journalctl", "--no-pager", "-o", "cat", "-n", "200").CombinedOutput()
			t.Logf("the journal: %s%v", journal, err)
		}
	})
	h.serves()
	h.husk("image", "load", "/web.tar")
	done("huskd serves")
	inSlices := []*bounded{inSlice(h, "runc"), inSlice(h, "crun")}
	beside := besideSlices(h)
	done("pods started")
	hold := func(when string) {
		for _, b := range inSlices {
			b.holds(when)
		}
		beside.holds(when)
		done("seen " + when)
	}
	hold("at first")
	for _, b := range inSlices {
		b.resize(30_000, 48*mebi)
	}
	h.systemctl("daemon-reload")
	h.systemctl("daemon-reexec")
	hold("after a resize, a reload and a reexec")
	h.restarts()
	hold("with another huskd")
	for _, b := range inSlices {
		b.starves()
		b.stops()
	}
	h.husk("rm", "-f", "web")
	h.systemctl("stop", "huskd", "kubepods.slice")
	node.Eventually(t, 10*time.Second, func() string {
		if left := slices.DeleteFunc(h.traces(), func(s string) bool { return slices.Contains(before, s) }); len(left) > 0 {
			return "left behind:\n  " + strings.Join(left, "\n  ")
		}
		return ""
	})
	done("nothing left")
}

// host is the machine itself.
type host struct{ t *testing.T }

func (h host) run(name string, args ...string) string {
	h.t.Helper()
	var errs bytes.Buffer
	cmd := exec.CommandContext(h.t.Context(), name, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		h.t.Fatalf("%s %s: %v: %s%s", name, strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

func (h host) husk(args ...string) string { h.t.Helper(); return h.run("husk", args...) }

func (h host) systemctl(args ...string) string { h.t.Helper(); return h.run("systemctl", args...) }

// serves waits until huskd serves.
func (h host) serves() {
	h.t.Helper()
	node.Eventually(h.t, time.Minute, func() string {
		if out, err := exec.Command("husk", "ps").CombinedOutput(); err != nil {
			return string(out)
		}
		return ""
	})
}

// restarts makes systemd restart huskd, after SIGTERM and after SIGKILL.
func (h host) restarts() {
	h.t.Helper()
	for _, how := range [][]string{{"restart", "huskd"}, {"kill", "--kill-whom=main", "-s", "KILL", "huskd"}} {
		before := h.mainPID()
		h.systemctl(how...)
		node.Eventually(h.t, time.Minute, func() string {
			if now := h.mainPID(); now == before || now == "0" {
				return "huskd is the one of before"
			}
			return ""
		})
		h.serves()
	}
}

// mainPID returns huskd's PID.
func (h host) mainPID() string {
	h.t.Helper()
	return strings.TrimSpace(h.systemctl("show", "--value", "-p", "MainPID", "huskd"))
}

// traces lists what exists of huskd and its pods, and the units that have failed.
func (h host) traces() (found []string) {
	h.t.Helper()
	ours := func(s string) bool {
		return strings.Contains(s, "husk") || strings.Contains(s, "kubepods") || strings.Contains(s, "conmon")
	}
	note := func(kind, text string, all bool) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && (all || ours(line)) {
				found = append(found, kind+" "+line)
			}
		}
	}
	note("unit", h.systemctl("list-units", "--all", "--plain", "--no-legend"), false)
	note("failed unit", h.systemctl("list-units", "--failed", "--plain", "--no-legend"), true)
	mounts, _ := os.ReadFile("/proc/1/mountinfo")
	note("mount", string(mounts), false)
	note("link", h.run("ip", "-o", "link"), true)
	note("nft table", h.run("nft", "list", "tables"), true)
	_ = filepath.WalkDir(unified, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			note("cgroup", path, false)
		}
		return nil
	})
	for _, pattern := range []string{"/run/netns/*", "/var/lib/husk/containers/*", "/var/lib/husk/sandboxes/*", "/run/husk/monitor/containers/*"} {
		paths, _ := filepath.Glob(pattern)
		note("file", strings.Join(paths, "\n"), true)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		if cmdline, _ := os.ReadFile(path); !strings.HasPrefix(string(cmdline), "/usr/lib/husk/") { // this test
			note("process", strings.ReplaceAll(string(cmdline), "\x00", " "), false)
		}
	}
	return found
}

// nameDevices creates the links by which the runtimes name a device to systemd. On a host, udev
// creates them.
func nameDevices(t *testing.T) {
	t.Helper()
	devices, err := filepath.Glob("/sys/dev/char/*")
	if err == nil {
		err = os.MkdirAll("/dev/char", 0o755)
	}
	for _, device := range devices {
		event, readErr := os.ReadFile(filepath.Join(device, "uevent"))
		_, name, ok := strings.Cut(string(event), "DEVNAME=")
		if err == nil && readErr == nil && ok {
			name, _, _ = strings.Cut(name, "\n")
			err = os.Symlink("../"+name, filepath.Join("/dev/char", filepath.Base(device)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bounded is a container of a pod in a slice, with its expected limits.
type bounded struct {
	host
	client
	runtime, slice, pod, id string
	config                  *runtimeapi.PodSandboxConfig
	pid                     int
	quota, most             int64
}

// inSlice starts a pod as the kubelet does, which creates the slice and sets its limits.
func inSlice(h host, runtime string) *bounded {
	h.t.Helper()
	name := "kubepods-burstable-pod0f3c_" + runtime + ".slice"
	h.systemctl("start", name)
	h.systemctl("set-property", "--runtime", name, "MemoryMax=96M", "CPUQuota=80%")
	b := &bounded{
		host: h, client: dial(h.t, "/run/husk/husk.sock", h.t.TempDir()), runtime: runtime,
		slice: "/kubepods.slice/kubepods-burstable.slice/" + name, quota: 50_000, most: 64 * mebi,
	}
	b.pod, b.config = b.sandbox(runtime, runtime, func(p *runtimeapi.PodSandboxConfig) {
		p.Linux.CgroupParent = b.slice
		p.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	var err error
	b.id, err = b.create(b.pod, b.config, forever, limited(b.quota, b.most), func(k *runtimeapi.ContainerConfig) {
		k.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"MKNOD"}}
		k.Devices = []*runtimeapi.Device{{HostPath: "/dev/cpu_dma_latency", ContainerPath: "/dev/latency", Permissions: "r"}}
	})
	b.must(err)
	b.start(b.id)
	b.pid = b.client.pid(b.id)
	return b
}

// scopes lists systemd's scopes of a container, or of all containers for an asterisk.
func (b *bounded) scopes(id string) string {
	b.host.t.Helper()
	return b.systemctl("list-units", "--all", "--plain", "--no-legend", "cri-husk-"+id+".scope")
}

// effective returns the limit that applies to a process: crun creates a cgroup of its own in the
// scope.
func (b *bounded) effective(cgroup, file string) (value string) {
	for ; cgroup != b.slice && cgroup != "/"; cgroup = filepath.Dir(cgroup) {
		if value = setting(b.host.t, cgroup, file); !strings.HasPrefix(value, "max") {
			break
		}
	}
	return value
}

// holds compares the container's state in systemd, the kernel, CRI and inside it.
func (b *bounded) holds(when string) {
	t := b.host.t
	t.Helper()
	when = b.runtime + ", " + when
	if pid := b.client.pid(b.id); pid != b.pid {
		t.Errorf("%s: its process was %d and is %d", when, b.pid, pid)
	}
	table, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", b.pid))
	in, scope := strings.TrimSpace(strings.TrimPrefix(string(table), "0::")), filepath.Join(b.slice, "cri-husk-"+b.id+".scope")
	if in != scope && !strings.HasPrefix(in, scope+"/") {
		t.Fatalf("%s: it is in cgroup %s, want %s", when, in, scope)
	}
	for file, want := range map[string]string{"memory.max": strconv.FormatInt(b.most, 10), "cpu.max": fmt.Sprintf("%d 100000", b.quota)} {
		if got := b.effective(in, file); got != want {
			t.Errorf("%s: %s is %q, want %q", when, file, got, want)
		}
	}
	for file, want := range map[string]string{"memory.max": "100663296", "cpu.max": "80000 100000"} {
		if got := setting(t, b.slice, file); got != want {
			t.Errorf("%s: %s of the slice is %q, want %q", when, file, got, want)
		}
	}
	got := b.systemctl("show", "-p", "Slice", "-p", "ActiveState", filepath.Base(scope))
	if got != "Slice="+filepath.Base(b.slice)+"\nActiveState=active\n" {
		t.Errorf("%s: systemd has %q", when, got)
	}
	b.says(b.id, map[string]string{
		"head -c 1 /dev/zero | wc -c; echo x >/dev/null; : <>/dev/ptmx; : </dev/latency; echo ok": "1\nok",
		// A device that the container may not use. It doesn't exist, which would show only if opening
		// it were permitted.
		"rm -f /tmp/kvm; mknod /tmp/kvm c 10 232; cat /tmp/kvm": "cat: can't open '/tmp/kvm': Operation not permitted",
	})
	r, err := b.ContainerStats(b.ctx, &runtimeapi.ContainerStatsRequest{ContainerId: b.id})
	b.must(err)
	if used := r.GetStats().GetMemory().GetWorkingSetBytes().GetValue(); used == 0 || used > uint64(b.most) {
		t.Errorf("%s: it uses %d bytes of %d", when, used, b.most)
	}
}

func (b *bounded) resize(quota, most int64) {
	b.host.t.Helper()
	b.quota, b.most = quota, most
	_, err := b.UpdateContainerResources(b.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: b.id, Linux: &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100_000, CpuQuota: quota, MemoryLimitInBytes: most,
	}})
	b.must(err)
}

// starves runs a container that the kernel kills for lack of memory, and checks that systemd then
// has no failed scope.
func (b *bounded) starves() {
	t := b.host.t
	t.Helper()
	id, err := b.create(b.pod, b.config, "exec dd if=/dev/zero of=/dev/null bs=256M count=1", named("eater"), limited(80_000, 32*mebi))
	b.must(err)
	b.start(id)
	if st := b.exited(id); st.GetReason() != "OOMKilled" || st.GetExitCode() != 137 {
		t.Errorf("%s: it ended as %v", b.runtime, st)
	}
	_, err = b.RemoveContainer(b.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	b.must(err)
	if left := b.scopes(id); left != "" {
		t.Errorf("%s: systemd has still %s", b.runtime, left)
	}
}

// stops stops the pod and removes its slice, as the kubelet does.
func (b *bounded) stops() {
	t := b.host.t
	t.Helper()
	_, err := b.StopContainer(b.ctx, &runtimeapi.StopContainerRequest{ContainerId: b.id, Timeout: 20})
	b.must(err)
	if st := b.exited(b.id); st.GetExitCode() != 0 {
		t.Errorf("%s: it ended as %v", b.runtime, st)
	}
	b.remove(b.pod)
	if left := b.scopes(b.id); left != "" {
		t.Errorf("%s: systemd has still %s", b.runtime, left)
	}
	b.systemctl("stop", filepath.Base(b.slice))
}

// ungoverned is a pod of a manifest, whose cgroups systemd doesn't know and leaves alone.
type ungoverned struct {
	host
	first inspected
}

func besideSlices(h host) ungoverned {
	h.t.Helper()
	path := filepath.Join(h.t.TempDir(), "web.yaml")
	if err := os.WriteFile(path, []byte(web), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.husk("run", "--wait", path)
	return ungoverned{h, decode(h.t, h.husk("inspect", "web"))}
}

func (u ungoverned) holds(when string) {
	u.t.Helper()
	pod := decode(u.t, u.husk("inspect", "web"))
	if !slices.Equal(u.first.Containers, pod.Containers) {
		u.t.Errorf("%s: the containers were %v and are %v", when, u.first.Containers, pod.Containers)
	}
	for _, want := range []struct{ cgroup, file, value string }{
		{pod.Containers[0].Cgroup, "memory.max", "67108864"},
		{pod.Containers[0].Cgroup, "cpu.max", "150000 100000"},
		{pod.Sandbox.Cgroup, "memory.max", "100663296"},
		{pod.Sandbox.Cgroup, "cpu.max", "200000 100000"},
	} {
		if got := setting(u.t, want.cgroup, want.file); got != want.value {
			u.t.Errorf("%s: %s of cgroup %s is %q, want %q", when, want.file, want.cgroup, got, want.value)
		}
	}
}
