package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type securityContext = runtimeapi.LinuxContainerSecurityContext

// withSecurity sets a security context that change modifies.
func withSecurity(change func(*securityContext)) func(*runtimeapi.ContainerConfig) {
	return func(k *runtimeapi.ContainerConfig) {
		k.Linux.SecurityContext = &securityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}
		change(k.Linux.SecurityContext)
	}
}

// TestCRISecurity tests how containers are confined.
func TestCRISecurity(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	c.pull(webImage)
	c.pull(usersImage)
	pod := c.pod(func(p *runtimeapi.PodSandboxConfig) {
		p.Linux.SecurityContext.Privileged = true
		p.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "1024 65000", "kernel.shm_rmid_forced": "1"}
	})
	id64 := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for _, k := range []struct {
		name   string
		change func(*securityContext)
		script string
		want   string
	}{
		{"sysctls of the sandbox", func(*securityContext) {}, "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shm_rmid_forced", "1024\t65000\n1"},
		{"user by number", func(s *securityContext) { s.RunAsUser, s.RunAsGroup = id64(1234), id64(4321) }, "id -u; id -g", "1234\n4321"},
		{"user by name", func(s *securityContext) { s.RunAsUsername = "alice" }, "id -un; id -Gn", "alice\nalice staff"},
		{"groups of the image are merged", func(s *securityContext) { s.RunAsUser, s.SupplementalGroups = id64(1000), []int64{77} }, "id -G", "1000 50 77"},
		{"groups of the image are ignored", func(s *securityContext) {
			s.RunAsUser, s.SupplementalGroups = id64(1000), []int64{77}
			s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
		}, "id -G", "1000 77"},
		{"read-only root", func(s *securityContext) { s.ReadonlyRootfs = true }, "touch /x 2>&1 || true", "touch: /x: Read-only file system"},
		{"default capabilities", func(*securityContext) {}, "grep CapEff /proc/self/status | cut -f 2; cat /proc/sys/net/ipv4/ping_group_range", "00000000800405fb\n0\t2147483647"},
		{"added capability", func(s *securityContext) {
			s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_TIME"}}
		}, capability(25), "1"},
		{"dropped capability", func(s *securityContext) { s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}} }, capability(0), "0"},
		{"no new privileges", func(s *securityContext) { s.NoNewPrivs = true }, "grep NoNewPrivs /proc/self/status | cut -f 2", "1"},
		{"masked and read-only paths", func(s *securityContext) {
			s.MaskedPaths, s.ReadonlyPaths = []string{"/proc/meminfo"}, []string{"/proc/sys"}
		}, "wc -c </proc/meminfo; [ -w /proc/sys/net/ipv4/ip_forward ] && echo x > /proc/sys/net/ipv4/ip_forward || echo refused", "0\nrefused"},
		{"privileged", func(s *securityContext) { s.Privileged = true }, "mount -t tmpfs none /mnt 2>/dev/null || mkdir -p /mnt && mount -t tmpfs none /mnt && echo mounted", "mounted"},
		{"default seccomp profile", func(s *securityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		}, "grep 'Seccomp:' /proc/self/status | cut -f 2; unshare -r true 2>/dev/null || echo refused", "2\nrefused"},
		{"unconfined", func(s *securityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		}, "grep 'Seccomp:' /proc/self/status | cut -f 2", "0"},
		{"local seccomp profile", func(s *securityContext) {
			profile := `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: write(t, c.Node, "profile.json", profile)}
		}, "mkdir /x 2>&1 || true", "mkdir: can't create directory '/x': Operation not permitted"},
	} {
		c.subtest(t, k.name, func(t *testing.T, c *criNode) {
			id := c.run(pod, forever, withSecurity(k.change), func(config *runtimeapi.ContainerConfig) { config.Image.Image = usersImage })
			if got := c.sh(id, k.script); got != k.want {
				t.Errorf("%s: got %q, want %q", k.script, got, k.want)
			}
			c.must(ignore(c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})))
		})
	}
	c.subtest(t, "status names the user", func(t *testing.T, c *criNode) {
		id := c.run(pod, forever, withSecurity(func(s *securityContext) { s.RunAsUsername = "alice" }), func(config *runtimeapi.ContainerConfig) { config.Image.Image = usersImage })
		if u := c.status(id).GetUser().GetLinux(); u.GetUid() != 1000 || u.GetGid() != 1000 || len(u.GetSupplementalGroups()) == 0 {
			t.Errorf("user: %v", u)
		}
	})
	c.subtest(t, "CDI devices", func(t *testing.T, c *criNode) { cdiDevices(t, c, pod) })
	c.subtest(t, "mounts", func(t *testing.T, c *criNode) { mounts(t, c, pod) })
	c.end()
}

// cdiDevices tests devices that CDI files on the node describe.
func cdiDevices(t *testing.T, c *criNode, pod string) {
	with := func(name string) func(*runtimeapi.ContainerConfig) {
		return func(k *runtimeapi.ContainerConfig) { k.CDIDevices = []*runtimeapi.CDIDevice{{Name: name}} }
	}
	c.Must("mkdir", "-p", "/run/cdi")
	c.must(os.WriteFile(c.Path("/run/cdi/test.yaml"), []byte(`cdiVersion: "0.6.0"
kind: husk.test/device
devices:
- name: zero
  containerEdits:
    deviceNodes: [{path: /dev/nought, hostPath: /dev/zero}]
    env: ["DEVICE=zero"]
`), 0o644))
	id := c.run(pod, forever, with("husk.test/device=zero"))
	if got := c.sh(id, "echo $DEVICE; head -c 3 /dev/nought | wc -c"); got != "zero\n3" {
		t.Errorf("the device and its variable: got %q, want %q", got, "zero\n3")
	}
	c.must(os.WriteFile(c.Path("/run/cdi/bad.yaml"), []byte("kind: ["), 0o644))
	for _, name := range []string{"husk.test/device=none", "nonsense", ""} {
		_, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever, with(name))})
		fails(t, err, codes.InvalidArgument, "CDI_devices")
	}
	c.must(ignore(c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})))
}

// capability returns a script that prints 1 if the process has capability n, or else 0.
func capability(n int) string {
	return "echo $(( (0x$(grep CapEff /proc/self/status | cut -f 2) >> " + string(rune('0'+n/10)) + string(rune('0'+n%10)) + ") & 1 ))"
}

func mounts(t *testing.T, c *criNode, pod string) {
	outside := filepath.Join(c.Dir, "mounted")
	c.Must("mkdir", "-p", outside+"/below")
	c.Must("mount", "-t", "tmpfs", "below", outside+"/below")
	defer c.Must("umount", "-l", outside+"/below")
	with := func(m *runtimeapi.Mount) func(*runtimeapi.ContainerConfig) {
		return func(k *runtimeapi.ContainerConfig) {
			m.ContainerPath = "/mounted"
			if m.HostPath == "" {
				m.HostPath = outside
			}
			k.Mounts = []*runtimeapi.Mount{m}
		}
	}
	for name, k := range map[string]struct {
		mount        *runtimeapi.Mount
		script, want string
	}{
		"writable":          {&runtimeapi.Mount{}, "touch /mounted/a /mounted/below/a && echo ok", "ok"},
		"read-only":         {&runtimeapi.Mount{Readonly: true}, "touch /mounted/a 2>/dev/null || echo refused; touch /mounted/below/a && echo ok", "refused\nok"},
		"recursively":       {&runtimeapi.Mount{Readonly: true, RecursiveReadOnly: true}, "touch /mounted/a 2>/dev/null || echo refused; touch /mounted/below/a 2>/dev/null || echo refused", "refused\nrefused"},
		"with options":      {&runtimeapi.Mount{MountOptions: []string{"noexec", "nodev"}}, "grep ' /mounted ' /proc/mounts | grep -c 'nodev,noexec'", "1"},
		"of a missing path": {&runtimeapi.Mount{HostPath: outside + "/new/dir"}, "touch /mounted/a && echo ok", "ok"},
	} {
		id := c.run(pod, forever, with(k.mount))
		if got := c.sh(id, k.script); got != k.want {
			t.Errorf("%s: got %q, want %q", name, got, k.want)
		}
	}
	for words, m := range map[string]*runtimeapi.Mount{
		"mounts[0].host_path":     {HostPath: "relative"},
		"recursive_read_only":     {RecursiveReadOnly: true},
		"mounts[0].mount_options": {MountOptions: []string{"suid"}},
		"mounts[0].propagation":   {Propagation: 7},
	} {
		_, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever, with(m))})
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("the error lacks %q: %v", words, err)
			continue
		}
		fails(t, err, codes.InvalidArgument, words)
	}
}
