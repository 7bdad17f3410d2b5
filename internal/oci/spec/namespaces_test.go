package spec

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

const (
	podMode       = runtimeapi.NamespaceMode_POD
	containerMode = runtimeapi.NamespaceMode_CONTAINER
	nodeMode      = runtimeapi.NamespaceMode_NODE
	targetMode    = runtimeapi.NamespaceMode_TARGET
)

// namespace returns the path of a namespace of the spec, or "absent" or "new".
func namespace(t *testing.T, s *specs.Spec, kind specs.LinuxNamespaceType) string {
	t.Helper()
	found := "absent"
	for _, n := range s.Linux.Namespaces {
		if n.Type != kind {
			continue
		}
		if found != "absent" {
			t.Errorf("%s is there twice", kind)
		}
		if found = n.Path; found == "" {
			found = "new"
		}
	}
	return found
}

func TestPIDNamespace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sandbox runtimeapi.NamespaceMode
		options *runtimeapi.NamespaceOption
		want    string
		err     string
	}{
		{containerMode, nil, "new", ""},
		{containerMode, &runtimeapi.NamespaceOption{}, "new", ""}, // POD is unset
		{containerMode, &runtimeapi.NamespaceOption{Pid: containerMode}, "new", ""},
		{containerMode, &runtimeapi.NamespaceOption{Pid: nodeMode}, "", "NODE, but the sandbox has CONTAINER"},
		{containerMode, &runtimeapi.NamespaceOption{Pid: targetMode}, "/pid/target", ""},
		{podMode, nil, "/pid/pod", ""},
		{podMode, &runtimeapi.NamespaceOption{Pid: podMode}, "/pid/pod", ""},
		{podMode, &runtimeapi.NamespaceOption{Pid: containerMode}, "new", ""},
		{podMode, &runtimeapi.NamespaceOption{Pid: nodeMode}, "", "NODE, but the sandbox has POD"},
		{nodeMode, nil, "absent", ""},
		{nodeMode, &runtimeapi.NamespaceOption{Pid: nodeMode}, "absent", ""},
		{nodeMode, &runtimeapi.NamespaceOption{}, "absent", ""},
		{nodeMode, &runtimeapi.NamespaceOption{Pid: containerMode}, "new", ""},
		{podMode, &runtimeapi.NamespaceOption{Pid: 9}, "", "unknown mode 9"},
	} {
		r := with(func(r *Request) {
			r.Sandbox.Linux.SecurityContext.NamespaceOptions.Pid = c.sandbox
			security(r).NamespaceOptions = c.options
			r.Namespaces.Target = "/pid/target"
			if c.sandbox == podMode {
				r.Namespaces.PID = "/pid/pod"
			}
		})
		out, err := Container(r)
		if c.err != "" {
			fails(t, err, "namespace_options.pid: "+c.err)
			continue
		}
		if err != nil {
			t.Errorf("sandbox %s, container %v: %v", c.sandbox, c.options, err)
		} else if got := namespace(t, out.Spec, specs.PIDNamespace); got != c.want {
			t.Errorf("sandbox %s, container %v: %s, want %s", c.sandbox, c.options, got, c.want)
		}
	}
	_, err := Container(with(func(r *Request) { security(r).NamespaceOptions.Pid = targetMode }))
	fails(t, err, "TARGET, but no container")
	_, err = Container(with(func(r *Request) {
		r.Sandbox.Linux.SecurityContext.NamespaceOptions.Pid, security(r).NamespaceOptions = podMode, nil
	}))
	fails(t, err, "no PID namespace to share")
}

func TestSharedNamespaces(t *testing.T) {
	t.Parallel()
	plain := must(t, request()).Spec
	for kind, want := range map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: "/run/netns/n", specs.IPCNamespace: "/run/husk/ipc", specs.UTSNamespace: "/run/husk/uts",
		specs.MountNamespace: "new", specs.CgroupNamespace: "absent", specs.UserNamespace: "absent",
	} {
		if got := namespace(t, plain, kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	if plain.Hostname != "" {
		t.Errorf("hostname %q: the pinned UTS namespace has it", plain.Hostname)
	}
	own := must(t, with(func(r *Request) { r.Namespaces.UTS = "" })).Spec
	if got := namespace(t, own, specs.UTSNamespace); got != "new" || own.Hostname != "web" {
		t.Errorf("own UTS: %s with hostname %q", got, own.Hostname)
	}
	for words, change := range map[string]func(*Request){
		"sandbox: it has no network namespace": func(r *Request) { r.Namespaces.Net = "" },
		"sandbox: it has no IPC namespace":     func(r *Request) { r.Namespaces.IPC = "" },
	} {
		_, err := Container(with(change))
		fails(t, err, words)
	}
}

func TestCgroupNamespace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode       host.CgroupMode
		privileged bool
		want       string
	}{{host.CgroupV1, false, "absent"}, {host.CgroupHybrid, false, "absent"}, {host.CgroupV2, false, "new"}, {host.CgroupV2, true, "absent"}} {
		out := must(t, with(func(r *Request) {
			r.Host.Cgroup.Mode = c.mode
			security(r).Privileged, r.Sandbox.Linux.SecurityContext.Privileged = c.privileged, c.privileged
		}))
		if got := namespace(t, out.Spec, specs.CgroupNamespace); got != c.want {
			t.Errorf("%s, privileged %t: %s", c.mode, c.privileged, got)
		}
	}
}

func TestUserNamespace(t *testing.T) {
	t.Parallel()
	ids := []*runtimeapi.IDMapping{{ContainerId: 0, HostId: 65536, Length: 65536}}
	set := func(sandbox, container *runtimeapi.UserNamespace, path string) func(*Request) {
		return func(r *Request) {
			r.Sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions = sandbox
			security(r).NamespaceOptions.UsernsOptions, r.Namespaces.User = container, path
		}
	}
	pod := &runtimeapi.UserNamespace{Mode: podMode, Uids: ids, Gids: ids}
	node := &runtimeapi.UserNamespace{Mode: nodeMode}
	out := must(t, with(set(pod, pod, "/u"))).Spec
	if got := namespace(t, out, specs.UserNamespace); got != "/u" {
		t.Errorf("POD: %s", got)
	}
	if m := out.Linux.UIDMappings; len(m) != 1 || m[0] != (specs.LinuxIDMapping{HostID: 65536, Size: 65536}) {
		t.Errorf("POD: %+v", m)
	}
	if got := namespace(t, must(t, with(set(node, node, ""))).Spec, specs.UserNamespace); got != "absent" {
		t.Errorf("NODE: %s", got)
	}
	for words, change := range map[string]func(*Request){
		"differs":           set(node, pod, "/u"),
		"differs from":      set(pod, node, "/u"),
		"no user namespace": set(pod, pod, ""),
		"uids and gids":     set(&runtimeapi.UserNamespace{}, nil, "/u"),
		"mode CONTAINER":    set(&runtimeapi.UserNamespace{Mode: containerMode, Uids: ids, Gids: ids}, nil, "/u"),
	} {
		_, err := Container(with(change))
		fails(t, err, "userns_options: ", words)
	}
}
