package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// firstID is the host ID that the tests' user namespaces map to root.
const firstID = 1 << 24

// ids maps 65536 IDs from host ID first on.
func ids(first uint32) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: first, Length: 1 << 16}}
}

// withUserNamespace gives a sandbox its own user namespace.
func withUserNamespace(p *runtimeapi.PodSandboxConfig) {
	p.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: ids(firstID), Gids: ids(firstID)}
}

// mappedVolume mounts a directory of the node with its owners mapped into the user namespace.
func mappedVolume(host, at string) func(*runtimeapi.ContainerConfig) {
	return func(k *runtimeapi.ContainerConfig) {
		k.Mounts = append(k.Mounts, &runtimeapi.Mount{HostPath: host, ContainerPath: at, UidMappings: ids(firstID), GidMappings: ids(firstID)})
	}
}

func TestUserNamespaces(t *testing.T) {
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) { userNamespaces(t, runtime) })
	}
}

func userNamespaces(t *testing.T, runtime string) {
	c := startHandlers(t)
	c.must(os.Chmod(c.Dir, 0o711)) // the pod's root must be able to reach its root file system
	handler := map[string]string{"crun": "crun", "runc": "steady"}[runtime]
	status, err := c.Status(c.ctx, &runtimeapi.StatusRequest{})
	c.must(err)
	for _, h := range status.GetRuntimeHandlers() {
		if !h.GetFeatures().GetUserNamespaces() {
			t.Errorf("handler %q does not support user namespaces", h.GetName())
		}
	}
	for _, pid := range []runtimeapi.NamespaceMode{runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD} {
		config := c.podConfig(withUserNamespace, func(p *runtimeapi.PodSandboxConfig) {
			p.Linux.SecurityContext.NamespaceOptions.Pid = pid
			p.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_unprivileged_port_start": "80"}
		})
		r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		c.must(err)
		inUserNamespace(t, c, r.GetPodSandboxId(), pid)
	}
	c.end()
}

func inUserNamespace(t *testing.T, c *criNode, pod string, pid runtimeapi.NamespaceMode) {
	host := t.TempDir()
	c.must(os.Chown(host, 0, 0))
	c.must(os.Chmod(filepath.Dir(host), 0o755))
	c.must(os.WriteFile(filepath.Join(host, "theirs"), nil, 0o600))
	c.must(os.Chown(filepath.Join(host, "theirs"), 33, 33))
	id := c.run(pod, "echo out >/dev/stdout || exit 1; "+forever, mappedVolume(host, "/data"), func(k *runtimeapi.ContainerConfig) {
		k.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: pid},
			Capabilities:     &runtimeapi.Capability{AddCapabilities: []string{"ALL"}},
		}
		k.Mounts = append(k.Mounts, &runtimeapi.Mount{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: webImage}})
	})
	c.ready(id)
	for script, want := range map[string]string{
		"id -u; cat /proc/self/uid_map | tr -s ' '":                                          fmt.Sprintf("0\n 0 %d 65536", firstID),
		"stat -c %u / /bin/sh /etc/hosts /dev/shm /tmp /image":                               "0\n0\n0\n0\n0\n0",
		"stat -c %u /data /data/theirs":                                                      "0\n33",
		"echo out >/dev/stdout":                                                              "out",
		"touch /data/new /made && stat -c %u /data/new /made":                                "0\n0",
		"echo more >>/bin/sh.copy; cp /bin/sh /tmp/sh; echo ok":                              "ok",
		"echo x >/dev/shm/x && echo 10.0.0.1 db >>/etc/hosts; tail -1 /etc/hosts":            "10.0.0.1 db",
		"cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start": "1\n80",
		"echo 77 >/proc/sys/net/core/somaxconn && cat /proc/sys/net/core/somaxconn":          "77",
		"ls /sys/class/net | tr '\n' ' '":                                                    "eth0 lo",
		"(echo 1 >/proc/sys/kernel/panic) 2>/dev/null || echo refused":                       "refused",
	} {
		r, err := c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 60})
		c.must(err)
		if got := strings.TrimSpace(string(r.GetStdout())); got != strings.TrimSpace(want) {
			t.Errorf("%s: got %q, want %q (exit code %d, %s)", script, got, want, r.GetExitCode(), r.GetStderr())
		}
	}
	// The IDs on the node's side of the mappings.
	owner := func(path string) uint32 {
		info, err := os.Stat(path)
		c.must(err)
		return info.Sys().(*syscall.Stat_t).Uid
	}
	if got := owner(filepath.Join(host, "new")); got != 0 {
		t.Errorf("on the volume, a file of the pod's root is owned by %d on the node, want 0", got)
	}
	if got := owner(filepath.Join(c.Root, "containers", id, "upper", "made")); got != firstID {
		t.Errorf("on the writable layer, a file of the pod's root is owned by %d on the node, want %d", got, firstID)
	}
	sameMappings(t, c, id)
	// After a restart of huskd, another container joins the pod's namespaces.
	c.huskd.Kill()
	c.huskd = c.Huskd(node.Flags("--config", filepath.Join(c.Dir, "huskd.toml")))
	c.connect()
	other := c.run(pod, forever)
	c.ready(other)
	const ns = "readlink /proc/self/ns/user; readlink /proc/self/ns/net"
	if a, b := c.sh(id, ns), c.sh(other, ns); a != b {
		t.Errorf("containers of one pod have different namespaces: %q and %q", a, b)
	}
	// The mappings of mounts must be those of the pod.
	_, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever, mappedVolume(host, "/data"), func(k *runtimeapi.ContainerConfig) {
		k.Mounts[0].UidMappings = ids(firstID + 1)
	})})
	fails(t, err, codes.InvalidArgument, "mount /data: uidMappings and gidMappings must be those of the pod's user namespace")
	_, err = c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever, mappedVolume("/proc/sys", "/data"))})
	if err == nil || !strings.Contains(err.Error(), "can't be mapped: use another, or no user namespace") {
		t.Errorf("a volume whose owners can't be mapped: %v", err)
	}
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
	if _, err := os.Stat(filepath.Join(host, "theirs")); err != nil {
		t.Errorf("a file of the volume was removed with the pod: %v", err)
	}
}

// sameMappings checks that the runtime spec of a container has the mappings of the user namespace
// that it names, in their order. runc from 1.2 on refuses others, and takes a path that begins with
// /proc/PID/ for a namespace of that process.
func sameMappings(t *testing.T, c *criNode, id string) {
	t.Helper()
	raw, err := os.ReadFile(c.Path(filepath.Join(c.State, "containers", id, "config.json")))
	c.must(err)
	var spec specs.Spec
	c.must(json.Unmarshal(raw, &spec))
	i := slices.IndexFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	if i < 0 || spec.Linux.Namespaces[i].Path == "" || strings.HasPrefix(spec.Linux.Namespaces[i].Path, "/proc/") {
		t.Fatalf("namespaces are %v: want a pinned user namespace", spec.Linux.Namespaces)
	}
	for file, mappings := range map[string][]specs.LinuxIDMapping{"uid_map": spec.Linux.UIDMappings, "gid_map": spec.Linux.GIDMappings} {
		var want []string
		for _, m := range mappings {
			want = append(want, fmt.Sprint(m.ContainerID), fmt.Sprint(m.HostID), fmt.Sprint(m.Size))
		}
		got := strings.Fields(c.Must("nsenter", "--user="+spec.Linux.Namespaces[i].Path, "cat", "/proc/self/"+file))
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("the %s of the user namespace is %q, the spec has %q", file, got, want)
		}
	}
}

const usersManifest = `apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 2000}
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: u, hostPath: {path: /usr}}
  containers:
  - name: web
    image: registry.test/cri/web:1
    imagePullPolicy: Never
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: memory, mountPath: /memory}
    - {name: u, mountPath: /u, readOnly: true}
  - name: other
    image: registry.test/cri/users:1
    imagePullPolicy: Never
    command: ["/bin/sh", "-c", "while :; do sleep 3600; done"]
    securityContext: {runAsUser: 1000, runAsGroup: 1000}
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: u, mountPath: /u, readOnly: true}
`

// TestManifestUserNamespace checks that each pod of a manifest with hostUsers: false gets its own
// range of IDs and keeps it over a restart of huskd.
func TestManifestUserNamespace(t *testing.T) {
	c := startHandlers(t)
	c.must(os.Chmod(c.Dir, 0o711))
	c.pull(usersImage)
	maps := func(pod string) string {
		r := c.Husk("exec", pod, "-c", "web", "--", "cat", "/proc/self/uid_map")
		if r.Code != 0 {
			t.Fatal(r)
		}
		return strings.Join(strings.Fields(r.Stdout), " ")
	}
	want := map[string]string{}
	for i, name := range []string{"one", "two"} {
		path := filepath.Join(c.Dir, name+".yaml")
		c.must(os.WriteFile(path, []byte(strings.ReplaceAll(usersManifest, "NAME", name)), 0o644))
		if r := c.Husk("run", "--wait", path); r.Code != 0 {
			t.Fatal(r)
		}
		want[name] = fmt.Sprintf("0 %d 65536", 1<<30+i<<16)
		for _, address := range []string{"127.0.0.1", "::1"} {
			for _, container := range []string{"web", "other"} {
				if r := c.Husk("exec", name, "-c", container, "--", "/bin/sh", "-c", iputils+" -c1 -w10 "+address); r.Code != 0 {
					t.Errorf("%s: %s: ping: %v", name, container, r)
				}
			}
		}
		for container, script := range map[string]string{
			"web":   "touch /disk/web /memory/web && stat -c %u:%g /disk/web",
			"other": "touch /disk/other && stat -c %u:%g /disk/other",
		} {
			r := c.Husk("exec", name, "-c", container, "--", "/bin/sh", "-c", script)
			if got := strings.TrimSpace(r.Stdout); got != map[string]string{"web": "0:2000", "other": "1000:2000"}[container] {
				t.Errorf("%s: %s: %q, %v", name, container, got, r)
			}
		}
	}
	check := func(when string) {
		t.Helper()
		for name, want := range want {
			if got := maps(name); got != want {
				t.Errorf("%s: pod %s maps %q, want %q", when, name, got, want)
			}
		}
	}
	check("before the restart")
	c.huskd.Kill()
	c.huskd = c.Huskd(node.Flags("--config", filepath.Join(c.Dir, "huskd.toml")))
	c.connect()
	check("after a restart")
	for name := range want {
		if r := c.Husk("rm", "-f", name); r.Code != 0 {
			t.Error(r)
		}
	}
	c.end()
}
