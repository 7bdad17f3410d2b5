package sandbox

import (
	"maps"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

func valid() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "n", Namespace: "s", Uid: "u"},
		Hostname:     "n",
		LogDirectory: "/var/log/pods/n",
		PortMappings: []*runtimeapi.PortMapping{{HostPort: 80, ContainerPort: 8080, HostIp: "::"}, {ContainerPort: 53, Protocol: runtimeapi.Protocol_UDP}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/pod1",
			Sysctls:      map[string]string{"net.ipv4.ip_forward": "1", "net/ipv4/conf/eth0.1/forwarding": "1", "kernel.shmmax": "1", "kernel.sem": "1 1 1 1", "fs.mqueue.msg_max": "9"},
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
				Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE},
			}},
		},
	}
}

func TestOrder(t *testing.T) {
	const before, after = sandboxstate.BeforeStart, sandboxstate.AfterStart
	for _, c := range []struct {
		annotations map[string]string
		handlers    sandboxstate.Order
		want        sandboxstate.Order
		words       string
	}{
		{want: ""},
		{handlers: after, want: after},
		{map[string]string{annotationNetwork: "after-start"}, "", after, ""},
		{map[string]string{annotationNetwork: "before-start"}, after, before, ""},
		{map[string]string{annotationISulad: "true"}, after, before, ""},
		{map[string]string{annotationISulad: "false"}, "", after, ""},
		{map[string]string{annotationISulad: "true", annotationNetwork: "after-start"}, "", after, ""},
		{map[string]string{annotationNetwork: ""}, after, "", `cni.husk.dev/network: "" is neither before-start nor after-start`},
		{map[string]string{annotationNetwork: "late"}, "", "", `"late" is neither`},
		{map[string]string{annotationISulad: "yes"}, "", "", `cri.sandbox.network.setup.v2: "yes" is neither true nor false`},
	} {
		config := valid()
		config.Annotations = c.annotations
		got, err := orderOf(config, c.handlers)
		if got != c.want || (err != nil) != (c.words != "") || err != nil && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%v, handler's %q: %q, %v", c.annotations, c.handlers, got, err)
		}
	}
}

func TestValidate(t *testing.T) {
	if err := validate(valid()); err != nil {
		t.Fatal(err)
	}
	if err := validate(&runtimeapi.PodSandboxConfig{Metadata: valid().GetMetadata()}); err != nil {
		t.Errorf("with nothing but metadata: %v", err)
	}
	for _, parent := range []string{"/", "pods", "pods/a", "pod-1.slice"} {
		c := valid()
		if c.Linux.CgroupParent = parent; validate(c) != nil {
			t.Errorf("cgroup_parent %q: %v", parent, validate(c))
		}
	}
	options := func(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
		return c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	}
	sysctl := func(name string) func(*runtimeapi.PodSandboxConfig) {
		return func(c *runtimeapi.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{name: "1"} }
	}
	for _, bad := range []struct {
		words  string
		change func(*runtimeapi.PodSandboxConfig)
	}{
		{"metadata.name is empty", func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil }},
		{"metadata.uid is empty", func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Uid = "" }},
		{"at most 253", func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Namespace = strings.Repeat("x", 254) }},
		{"not a port", func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].HostPort = 65536 }},
		{"not a port", func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].ContainerPort = -1 }},
		{"unknown protocol 9", func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].Protocol = 9 }},
		{`host_ip "localhost"`, func(c *runtimeapi.PodSandboxConfig) { c.PortMappings[0].HostIp = "localhost" }},
		{"at most 64", func(c *runtimeapi.PodSandboxConfig) { c.Hostname = strings.Repeat("x", 65) }},
		{"not allowed in a name", func(c *runtimeapi.PodSandboxConfig) { c.Hostname = "a\nb" }},
		{"log_directory", func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "logs" }},
		{"log_directory", func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "/logs/../etc" }},
		{"cgroup_parent", func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "../pods" }},
		{"cgroup_parent", func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "." }},
		{"cgroup_parent", func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "/pods/../.." }},
		{"network namespace mode CONTAINER", func(c *runtimeapi.PodSandboxConfig) { options(c).Network = runtimeapi.NamespaceMode_CONTAINER }},
		{"pid namespace mode TARGET", func(c *runtimeapi.PodSandboxConfig) { options(c).Pid = runtimeapi.NamespaceMode_TARGET }},
		{"ipc namespace mode 7", func(c *runtimeapi.PodSandboxConfig) { options(c).Ipc = 7 }},
		{"user namespace mode CONTAINER", func(c *runtimeapi.PodSandboxConfig) {
			options(c).UsernsOptions.Mode = runtimeapi.NamespaceMode_CONTAINER
		}},
		{"has 0 mappings: want one", func(c *runtimeapi.PodSandboxConfig) { options(c).UsernsOptions = &runtimeapi.UserNamespace{} }},
		{"has 2 mappings", func(c *runtimeapi.PodSandboxConfig) {
			user := users(1<<20, 0, 1<<16)
			user.Gids = append(user.Gids, user.Gids[0])
			options(c).UsernsOptions = user
		}},
		{"maps 1000 IDs from 0 on", func(c *runtimeapi.PodSandboxConfig) { options(c).UsernsOptions = users(1<<20, 0, 1000) }},
		{"maps 65536 IDs from 5 on", func(c *runtimeapi.PodSandboxConfig) { options(c).UsernsOptions = users(1<<20, 5, 1<<16) }},
		{"to the node's root", func(c *runtimeapi.PodSandboxConfig) { options(c).UsernsOptions = users(0, 0, 1<<16) }},
		{"no IDs up to 4294967295", func(c *runtimeapi.PodSandboxConfig) { options(c).UsernsOptions = users(1<<32-1<<16, 0, 1<<16) }},
		{"combined with the node's network", func(c *runtimeapi.PodSandboxConfig) {
			options(c).UsernsOptions, options(c).Pid = users(1<<20, 0, 1<<16), runtimeapi.NamespaceMode_NODE
		}},
		{"not a name", sysctl("../../etc/passwd")},
		{"not a name", sysctl("net")},
		{"not a name", sysctl("net..x")},
		{"not a name", sysctl("")},
		{"applies to the whole node", sysctl("kernel.panic")},
		{"applies to the whole node", sysctl("vm.swappiness")},
		{"applies to the whole node", sysctl("kernel/core_pattern")},
		{"uses the node's network namespace", func(c *runtimeapi.PodSandboxConfig) { options(c).Network = runtimeapi.NamespaceMode_NODE }},
		{"uses the node's IPC namespace", func(c *runtimeapi.PodSandboxConfig) {
			options(c).Ipc = runtimeapi.NamespaceMode_NODE
			c.Linux.Sysctls = map[string]string{"kernel.shmmax": "1"}
		}},
	} {
		c := valid()
		bad.change(c)
		if err := validate(c); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), bad.words) {
			t.Errorf("%s: %v", bad.words, err)
		}
	}
}

// users returns a user namespace that maps size IDs from in on to those from host on.
func users(host, in, size uint32) *runtimeapi.UserNamespace {
	ids := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: host, ContainerId: in, Length: size}}
	}
	return &runtimeapi.UserNamespace{Uids: ids(), Gids: ids()}
}

// TestLabels checks that a sandbox's labels are known to the network when it is attached and, as
// the record of its attachment doesn't have them, after a restart.
func TestLabels(t *testing.T) {
	for name, labels := range map[string]map[string]string{"some": {"app": "db"}, "none": nil} {
		config := valid()
		config.Labels = labels
		e := New(discard(t)).newEntry(fuzzID, config, &record{})
		for when, got := range map[string]map[string]string{"attached": e.attachment().Labels, "restarted": e.View().Attachment.Labels} {
			if got == nil || !maps.Equal(got, labels) {
				t.Errorf("%s, %s: the labels are %#v, want %v", name, when, got, labels)
			}
		}
	}
}
