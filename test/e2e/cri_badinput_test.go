package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// TestCRIBadInput checks that invalid requests fail with one clear line and leave nothing behind.
func TestCRIBadInput(t *testing.T) {
	t.Parallel()
	c := startCRI(t, node.Flags("--short-names", "refuse")) // there is no docker.io here
	c.pull(webImage)
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: c.pod()}))) // opens the descriptors that huskd keeps
	before := c.descriptors()
	c.subtest(t, "sandboxes", badSandboxes)
	c.subtest(t, "containers", badContainers)
	c.subtest(t, "odd IDs", badIDs)
	c.subtest(t, "odd texts in configs", oddConfigs)
	c.subtest(t, "long annotations", func(t *testing.T, c *criNode) {
		long := strings.Repeat("a", 1<<20)
		id := c.pod(func(p *runtimeapi.PodSandboxConfig) { p.Annotations = map[string]string{"long": long} })
		r, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		c.must(err)
		if r.GetStatus().GetAnnotations()["long"] != long {
			t.Error("an annotation of 1 MB is not preserved")
		}
	})
	c.subtest(t, "odd texts in requests", oddRequests)
	c.subtest(t, "clients that time out and retry", clientTimeouts)
	c.subtest(t, "clients that time out in any call", anyCallTimeout)
	c.subtest(t, "stalled readers", stalledReaders)
	for _, p := range must(c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{})).GetItems() {
		c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})))
	}
	node.Eventually(t, 20*time.Second, func() string {
		// A pool may have grown by one or two; a leak would add hundreds.
		if now := c.descriptors(); len(now) > len(before)+2 {
			return fmt.Sprintf("huskd has %v open; at the start: %v", now, before)
		}
		return ""
	})
	c.end()
}

// descriptors returns the targets of huskd's file descriptors.
func (c *criNode) descriptors() (open []string) {
	c.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", c.huskd.Pid())
	for _, fd := range must(os.ReadDir(dir)) {
		to, _ := os.Readlink(filepath.Join(dir, fd.Name()))
		open = append(open, to)
	}
	slices.Sort(open)
	return open
}

func badSandboxes(t *testing.T, c *criNode) {
	for words, change := range map[string]func(*runtimeapi.PodSandboxConfig){
		"metadata.name":      func(p *runtimeapi.PodSandboxConfig) { p.Metadata.Name = "" },
		"metadata.namespace": func(p *runtimeapi.PodSandboxConfig) { p.Metadata.Namespace = "" },
		"metadata.uid":       func(p *runtimeapi.PodSandboxConfig) { p.Metadata.Uid = "" },
		"metadata.":          func(p *runtimeapi.PodSandboxConfig) { p.Metadata = nil },
		"port mapping": func(p *runtimeapi.PodSandboxConfig) {
			p.PortMappings = []*runtimeapi.PortMapping{{HostPort: 65536, ContainerPort: 80}}
		},
		"host_ip \"nowhere\"": func(p *runtimeapi.PodSandboxConfig) {
			p.PortMappings = []*runtimeapi.PortMapping{{HostPort: 8080, ContainerPort: 80, HostIp: "nowhere"}}
		},
		"protocol": func(p *runtimeapi.PodSandboxConfig) {
			p.PortMappings = []*runtimeapi.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: 9}}
		},
		"hostname": func(p *runtimeapi.PodSandboxConfig) { p.Hostname = strings.Repeat("h", 65) },
		"sysctl": func(p *runtimeapi.PodSandboxConfig) {
			p.Linux.Sysctls = map[string]string{"../../etc/passwd": "1"}
		},
		"log_directory": func(p *runtimeapi.PodSandboxConfig) { p.LogDirectory = "relative" },
		"cgroup_parent": func(p *runtimeapi.PodSandboxConfig) { p.Linux.CgroupParent = "../up" },
		"the node's root": func(p *runtimeapi.PodSandboxConfig) {
			p.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{
				Uids: []*runtimeapi.IDMapping{{HostId: 0, Length: 65536}}, Gids: []*runtimeapi.IDMapping{{HostId: 0, Length: 65536}},
			}
		},
		"namespace mode": func(p *runtimeapi.PodSandboxConfig) { p.Linux.SecurityContext.NamespaceOptions.Network = 9 },
	} {
		_, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(change)})
		fails(t, err, codes.InvalidArgument, words)
	}
	_, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{})
	fails(t, err, codes.InvalidArgument, "config is missing")
	_, err = c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(), RuntimeHandler: "kata"})
	fails(t, err, codes.InvalidArgument, `runtime handler "kata"`)
	if r := must(c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{})); len(r.GetItems()) > 0 {
		t.Errorf("the rejected requests left sandboxes: %v", r.GetItems())
	}
}

func badContainers(t *testing.T, c *criNode) {
	pod := c.pod()
	create := func(pod string, config *runtimeapi.ContainerConfig) error {
		return ignore(c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config}))
	}
	for words, change := range map[string]func(*runtimeapi.ContainerConfig){
		"metadata.name":         func(k *runtimeapi.ContainerConfig) { k.Metadata = nil },
		"image is empty":        func(k *runtimeapi.ContainerConfig) { k.Image = nil },
		"log_path":              func(k *runtimeapi.ContainerConfig) { k.LogPath = "../../up.log" },
		"command":               func(k *runtimeapi.ContainerConfig) { k.Command = []string{"a\x00b"} },
		"can't name a variable": func(k *runtimeapi.ContainerConfig) { k.Envs = []*runtimeapi.KeyValue{{Key: "a=b"}} },
		"mounts[0]":             func(k *runtimeapi.ContainerConfig) { k.Mounts = []*runtimeapi.Mount{{HostPath: "/tmp"}} },
		"has a ..": func(k *runtimeapi.ContainerConfig) {
			k.Mounts = []*runtimeapi.Mount{{HostPath: "/tmp", ContainerPath: "/a/../b"}}
		},
		"run_as_group":          withSecurity(func(s *securityContext) { s.RunAsGroup = &runtimeapi.Int64Value{Value: 1} }),
		"is not in /etc/passwd": withSecurity(func(s *securityContext) { s.RunAsUsername = "nobody-such" }),
		"add_capabilities":      withSecurity(func(s *securityContext) { s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"FLY"}} }),
		"seccomp": withSecurity(func(s *securityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "relative"}
		}),
		"apparmor": withSecurity(func(s *securityContext) {
			s.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "profile"}
		}),
		"privileged":        withSecurity(func(s *securityContext) { s.Privileged = true }),
		"namespace_options": withSecurity(func(s *securityContext) { s.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE }),
		"/no/such/dev": func(k *runtimeapi.ContainerConfig) {
			k.Devices = []*runtimeapi.Device{{HostPath: "/no/such/dev", ContainerPath: "/dev/x", Permissions: "rwm"}}
		},
		"CDI_devices": func(k *runtimeapi.ContainerConfig) { k.CDIDevices = []*runtimeapi.CDIDevice{{Name: "a/b=c"}} },
	} {
		fails(t, create(pod, c.containerConfig(forever, change)), codes.InvalidArgument, words)
	}
	fails(t, create(pod, nil), codes.InvalidArgument, "config is missing")
	fails(t, create("", c.containerConfig(forever)), codes.InvalidArgument, "ID is empty")
	fails(t, create("none", c.containerConfig(forever)), codes.NotFound, "not found")
	fails(t, create(pod, c.containerConfig(forever, func(k *runtimeapi.ContainerConfig) { k.Image.Image = "registry.test/none:1" })), codes.NotFound, "registry.test/none:1")
	c.must(ignore(c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})))
	fails(t, create(pod, c.containerConfig(forever)), codes.FailedPrecondition, "no container can be created in it")
	if r := must(c.ListContainers(c.ctx, &runtimeapi.ListContainersRequest{})); len(r.GetContainers()) > 0 {
		t.Errorf("the rejected requests left containers: %v", r.GetContainers())
	}
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
}

// badIDs checks that any string is safe as an ID, such as a path or one too long for a message.
func badIDs(t *testing.T, c *criNode) {
	for _, id := range []string{"", "x", "../../../etc/passwd", "a/b", "\x01", strings.Repeat("0", 64), strings.Repeat("f", 65), strings.Repeat("g", 100_000), "é\n%s"} {
		code, words := codes.NotFound, "not found"
		if id == "" {
			code, words = codes.InvalidArgument, "empty"
		}
		for _, err := range []error{
			ignore(c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})),
			ignore(c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})),
			ignore(c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: id})),
			ignore(c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})),
			ignore(c.Attach(c.ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})),
			ignore(c.PortForward(c.ctx, &runtimeapi.PortForwardRequest{PodSandboxId: id})),
			ignore(c.ReopenContainerLog(c.ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})),
			ignore(c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id})),
			ignore(c.UpdatePodSandboxResources(c.ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: id})),
			ignore(c.ContainerStats(c.ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})),
			ignore(c.PodSandboxStats(c.ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})),
		} {
			fails(t, err, code, words)
		}
		if id == "" {
			continue
		}
		c.must(ignore(c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})))
		c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})))
		c.must(ignore(c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id})))
		c.must(ignore(c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})))
	}
}

// oddTexts are strings that a client may send in any field.
var oddTexts = []string{"", ".", "..", "../../x", "/", "/dev/null/x", "a b", "\x00", "\n", "%s%n", "-rf", strings.Repeat("x", 5000), "🜚"}

// oddConfigs puts odd texts into every string of a container's and a sandbox's config, one at a
// time. Each is accepted or rejected, but never an internal error.
func oddConfigs(_ *testing.T, c *criNode) {
	pod := c.pod()
	container := func() proto.Message {
		return c.containerConfig("true", withSecurity(func(s *securityContext) {
			s.MaskedPaths, s.ReadonlyPaths, s.RunAsUsername = []string{"/proc/meminfo"}, []string{"/proc/sys"}, "root"
			s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"CHOWN"}, DropCapabilities: []string{"KILL"}}
			s.Seccomp = &runtimeapi.SecurityProfile{}
		}), func(k *runtimeapi.ContainerConfig) {
			k.WorkingDir = "/"
			k.Args = []string{"x"}
			k.Mounts = []*runtimeapi.Mount{{HostPath: c.Dir, ContainerPath: "/mnt", MountOptions: []string{"nodev"}}}
			k.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/nothing", Permissions: "r"}}
			k.Linux.Resources = &runtimeapi.LinuxContainerResources{CpusetCpus: "0", CpusetMems: "0"}
		})
	}
	c.tryOddTexts(container, func(m proto.Message) error {
		r, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: m.(*runtimeapi.ContainerConfig)})
		if err == nil {
			c.must(ignore(c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: r.GetContainerId()})))
		}
		return err
	})
	sandbox := func() proto.Message {
		return c.podConfig(func(p *runtimeapi.PodSandboxConfig) {
			p.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"192.0.2.1"}, Searches: []string{"example.test"}, Options: []string{"ndots:2"}}
			p.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080, HostIp: "127.0.0.1"}}
			p.Linux.CgroupParent = "/husk-test"
			p.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{}
		})
	}
	c.tryOddTexts(sandbox, func(m proto.Message) error {
		r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: m.(*runtimeapi.PodSandboxConfig)})
		if err == nil {
			c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: r.GetPodSandboxId()})))
		}
		return err
	})
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
}

// tryOddTexts calls try with a message in which one string is replaced by an odd text, for every
// string of the message and some of the texts.
func (c *criNode) tryOddTexts(base func() proto.Message, try func(proto.Message) error) {
	c.t.Helper()
	fields := 0
	walk(base().ProtoReflect(), func(string, func(string)) { fields++ })
	const each = 4
	for i := range fields * each {
		message, n, field, text := base(), 0, "", oddTexts[i%len(oddTexts)]
		walk(message.ProtoReflect(), func(name string, set func(string)) {
			if n == i/each {
				set(text)
				field = name
			}
			n++
		})
		switch err := try(message); status.Code(err) {
		case codes.OK:
		case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition:
			fails(c.t, err, status.Code(err), "")
		default:
			c.t.Errorf("%.80q in %s: unexpected error %v", text, field, err)
		}
	}
}

// walk visits every string that is set in a message.
func walk(m protoreflect.Message, visit func(field string, set func(string))) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for i := range v.List().Len() {
				visit(string(f.FullName()), func(s string) { v.List().Set(i, protoreflect.ValueOfString(s)) })
			}
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), visit)
			}
		case f.Kind() == protoreflect.StringKind:
			visit(string(f.FullName()), func(s string) { m.Set(f, protoreflect.ValueOfString(s)) })
		case f.Kind() == protoreflect.MessageKind:
			walk(v.Message(), visit)
		}
		return true
	})
}

// clientTimeouts checks that a call succeeds when a client repeats it after giving up on it, and
// that no sandbox remains from the calls that were given up.
func clientTimeouts(t *testing.T, c *criNode) {
	for i := range 12 {
		short := func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(c.ctx, time.Duration(i)*3*time.Millisecond)
		}
		config := c.podConfig()
		ctx, cancel := short()
		_, _ = c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
		cancel()
		pod := c.runPod(config)
		container := c.containerConfig(forever)
		ctx, cancel = short()
		_, _ = c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: container})
		cancel()
		id := c.create(pod, container)
		for _, call := range []func(ctx context.Context) error{
			func(ctx context.Context) error {
				return ignore(c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}))
			},
			func(ctx context.Context) error {
				return ignore(c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}))
			},
			func(ctx context.Context) error {
				return ignore(c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}))
			},
		} {
			ctx, cancel = short()
			_ = call(ctx)
			cancel()
			c.must(call(c.ctx))
		}
	}
	node.Eventually(t, 20*time.Second, func() string {
		if r := must(c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{})); len(r.GetItems()) > 1 { // that of an earlier subtest
			return fmt.Sprintf("%d sandboxes are left", len(r.GetItems()))
		}
		return ""
	})
}
