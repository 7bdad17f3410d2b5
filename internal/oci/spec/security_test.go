package spec

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

const (
	runtimeDefault = runtimeapi.SecurityProfile_RuntimeDefault
	unconfined     = runtimeapi.SecurityProfile_Unconfined
	localhost      = runtimeapi.SecurityProfile_Localhost
)

// privilege makes the container privileged.
func privilege(r *Request) {
	security(r).Privileged, r.Sandbox.Linux.SecurityContext.Privileged = true, true
}

func TestSeccomp(t *testing.T) {
	t.Parallel()
	const profile = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["reboot"],"action":"SCMP_ACT_ERRNO","excludes":{"caps":["CAP_SYS_BOOT"]}}]}`
	for _, c := range []struct {
		name   string
		change func(*Request)
		want   specs.LinuxSeccompAction // "" is no filter
		notes  int
	}{
		{"absent", func(r *Request) { security(r).Seccomp = nil }, "", 0},
		{"default", func(*Request) {}, specs.ActErrno, 0},
		{"unconfined", func(r *Request) { security(r).Seccomp.ProfileType = unconfined }, "", 0},
		{"privileged", privilege, "", 0},
		{"local", func(r *Request) {
			security(r).Seccomp = &runtimeapi.SecurityProfile{ProfileType: localhost, LocalhostRef: "/p.json"}
			r.Seccomp = []byte(profile)
		}, specs.ActAllow, 0},
		{"old default", func(r *Request) { security(r).Seccomp, security(r).SeccompProfilePath = nil, "runtime/default" }, specs.ActErrno, 0},
		{"docker's old default", func(r *Request) { security(r).Seccomp, security(r).SeccompProfilePath = nil, "docker/default" }, specs.ActErrno, 0},
		{"old unconfined", func(r *Request) { security(r).Seccomp, security(r).SeccompProfilePath = nil, "unconfined" }, "", 0},
		{"old local", func(r *Request) {
			security(r).Seccomp, security(r).SeccompProfilePath, r.Seccomp = nil, "localhost//p.json", []byte(profile)
		}, specs.ActAllow, 0},
		{"the new field overrides the old", func(r *Request) { security(r).SeccompProfilePath = "unconfined" }, specs.ActErrno, 0},
		{"kernel without seccomp", func(r *Request) { r.Host.Seccomp = false }, "", 1},
		{"unconfined on a kernel without seccomp", func(r *Request) { r.Host.Seccomp, security(r).Seccomp.ProfileType = false, unconfined }, "", 0},
	} {
		out := must(t, with(c.change))
		var got specs.LinuxSeccompAction
		if s := out.Spec.Linux.Seccomp; s != nil {
			got = s.DefaultAction
		}
		if got != c.want || len(out.Notes) != c.notes {
			t.Errorf("%s: %q with notes %q, want %q", c.name, got, out.Notes, c.want)
		}
	}
}

// TestSeccompFollowsCapabilities checks that a system call that needs a capability is allowed only
// to containers that have it.
func TestSeccompFollowsCapabilities(t *testing.T) {
	t.Parallel()
	allows := func(s *specs.Spec, name string) bool {
		return slices.ContainsFunc(s.Linux.Seccomp.Syscalls, func(c specs.LinuxSyscall) bool {
			return c.Action == specs.ActAllow && len(c.Args) == 0 && slices.Contains(c.Names, name)
		})
	}
	plain := must(t, request()).Spec
	admin := must(t, with(func(r *Request) {
		security(r).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	})).Spec
	if !allows(plain, "read") || allows(plain, "mount") || !allows(admin, "mount") {
		t.Errorf("allowed: read %t, mount %t, mount with SYS_ADMIN %t; want true, false, true", allows(plain, "read"), allows(plain, "mount"), allows(admin, "mount"))
	}
	if slices.Contains(plain.Linux.Seccomp.Architectures, specs.ArchX32) {
		t.Error("the filter is compiled for x32 too")
	}
	if len(plain.Linux.Seccomp.Architectures) == 0 {
		t.Error("the profile has no architectures")
	}
}

func TestBadSeccomp(t *testing.T) {
	t.Parallel()
	local := func(ref, content string) func(*Request) {
		return func(r *Request) {
			security(r).Seccomp = &runtimeapi.SecurityProfile{ProfileType: localhost, LocalhostRef: ref}
			r.Seccomp = []byte(content)
		}
	}
	for words, change := range map[string]func(*Request){
		"Localhost needs a localhost_ref":    local("", "{}"),
		"not an absolute path":               local("p.json", "{}"),
		"profile /p.json: it is not JSON":    local("/p.json", "{"),
		"it has no defaultAction":            local("/p.json", "{}"),
		"profile /p.json: it has no default": local("/p.json", `{"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`),
		"profile /p.json: ":                  local("/p.json", `[]`),
		"was not found": func(r *Request) {
			local("/p.json", "")(r)
			r.Seccomp = nil
		},
		"no seccomp filters": func(r *Request) {
			local("/p.json", `{"defaultAction":"SCMP_ACT_ALLOW"}`)(r)
			r.Host.Seccomp = false
		},
		"is for Localhost only":  func(r *Request) { security(r).Seccomp.LocalhostRef = "/p" },
		"unknown profile type 8": func(r *Request) { security(r).Seccomp.ProfileType = 8 },
		`"bogus" is not`:         func(r *Request) { security(r).Seccomp, security(r).SeccompProfilePath = nil, "bogus" },
	} {
		_, err := Container(with(change))
		fails(t, err, "linux.security_context.seccomp: ", words)
	}
}

func TestAppArmor(t *testing.T) {
	t.Parallel()
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) func(*Request) {
		return func(r *Request) {
			r.Host.AppArmor = true
			security(r).Apparmor = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Request)
		want   string
		notes  int
	}{
		{"absent", func(r *Request) { r.Host.AppArmor = true }, "", 0},
		{"local", profile(localhost, "web"), "web", 0},
		{"local with its prefix", profile(localhost, "localhost/web"), "web", 0},
		{"unconfined", profile(unconfined, ""), "", 0},
		{"default", profile(runtimeDefault, ""), "", 1},
		{"old", func(r *Request) { r.Host.AppArmor, security(r).ApparmorProfile = true, "localhost/web" }, "web", 0},
		{"privileged", func(r *Request) { profile(localhost, "web")(r); privilege(r) }, "", 0},
	} {
		out := must(t, with(c.change))
		if got := out.Spec.Process.ApparmorProfile; got != c.want || len(out.Notes) != c.notes {
			t.Errorf("%s: %q with notes %q", c.name, got, out.Notes)
		}
	}
	_, err := Container(with(func(r *Request) { profile(localhost, "web")(r); r.Host.AppArmor = false }))
	fails(t, err, "linux.security_context.apparmor: this host has no AppArmor")
	_, err = Container(with(func(r *Request) { security(r).ApparmorProfile = "x" }))
	fails(t, err, "linux.security_context.apparmor: ")
}

func TestSELinux(t *testing.T) {
	t.Parallel()
	sandbox := Labels{"system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"}
	for _, c := range []struct {
		name    string
		labels  Labels
		options *runtimeapi.SELinuxOption
		change  func(*Request)
		want    Labels
	}{
		{"the sandbox's", sandbox, nil, nil, sandbox},
		{"another level", sandbox, &runtimeapi.SELinuxOption{Level: "s0:c9"}, nil,
			Labels{"system_u:system_r:container_t:s0:c9", "system_u:object_r:container_file_t:s0:c9"}},
		{"another type", sandbox, &runtimeapi.SELinuxOption{Type: "spc_t"}, nil, Labels{"system_u:system_r:spc_t:s0:c1,c2", sandbox.Mount}},
		{"all of its own", Labels{}, &runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0"}, nil, Labels{"u:r:t:s0", ":::s0"}},
		{"privileged", sandbox, nil, privilege, Labels{}},
		{"host without it", sandbox, nil, func(r *Request) { r.Host.SELinux = false }, Labels{}},
	} {
		out := must(t, with(func(r *Request) {
			r.Host.SELinux, r.Labels = true, c.labels
			security(r).SelinuxOptions = c.options
			if c.change != nil {
				c.change(r)
			}
		})).Spec
		if got := (Labels{out.Process.SelinuxLabel, out.Linux.MountLabel}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	_, err := Container(with(func(r *Request) {
		r.Host.SELinux, security(r).SelinuxOptions = true, &runtimeapi.SELinuxOption{Level: "s0"}
	}))
	fails(t, err, "selinux_options: needs all of")
	_, err = Container(with(func(r *Request) {
		r.Host.SELinux, security(r).SelinuxOptions, r.Labels = true, &runtimeapi.SELinuxOption{Level: "s0"}, Labels{sandbox.Process, "bad"}
	}))
	fails(t, err, `mount label "bad"`)
}

func TestPaths(t *testing.T) {
	t.Parallel()
	unmasked := must(t, with(func(r *Request) { security(r).MaskedPaths, security(r).ReadonlyPaths = nil, nil })).Spec.Linux
	if len(unmasked.MaskedPaths) > 0 || !slices.Equal(unmasked.ReadonlyPaths, []string{pathCgroup}) {
		t.Errorf("procMount Unmasked: %v %v", unmasked.MaskedPaths, unmasked.ReadonlyPaths)
	}
	for what, change := range map[string]func(*Request){
		"cgroup v2": func(r *Request) { r.Host.Cgroup.Mode = host.CgroupV2 },
		"a mount of the pod's": func(r *Request) {
			r.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/sys/fs/cgroup/", HostPath: "/c"}}
		},
	} {
		if got := must(t, with(change)).Spec.Linux.ReadonlyPaths; slices.Contains(got, pathCgroup) {
			t.Errorf("%s: %v", what, got)
		}
	}
	privileged := must(t, with(privilege)).Spec.Linux
	if len(privileged.MaskedPaths)+len(privileged.ReadonlyPaths) > 0 {
		t.Errorf("privileged: %v %v", privileged.MaskedPaths, privileged.ReadonlyPaths)
	}
	own := must(t, with(func(r *Request) { security(r).MaskedPaths = []string{"/proc/x"} })).Spec.Linux
	if !slices.Equal(own.MaskedPaths, []string{"/proc/x"}) {
		t.Errorf("own: %v", own.MaskedPaths)
	}
}

// TestAnnotationsOfPodsStayOutside checks that annotations that a tenant sets don't reach the
// runtime, which would take some as orders: systemd properties (the class of CVE-2024-3154), hooks,
// files of CRIU and of gVisor and Kata.
func TestAnnotationsOfPodsStayOutside(t *testing.T) {
	r := request()
	hostile := map[string]string{
		"org.systemd.property.ExecStopPost": "'/bin/sh'", "org.criu.config": "/tmp/x", "run.oci.handler": "x", "run.oci.hooks.stdout": "/etc/x",
		"dev.gvisor.flag.debug-log": "/etc/x", "io.katacontainers.config.hypervisor.path": "/tmp/x", annotationType: "sandbox",
	}
	r.Sandbox.Annotations, r.Config.Annotations = hostile, hostile
	result, err := Container(r)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range hostile {
		if got, ok := result.Spec.Annotations[key]; ok && got == value {
			t.Errorf("annotation %s reaches the runtime", key)
		}
	}
}

// TestDefaultProfileDenies checks what the default seccomp profile must not allow.
func TestDefaultProfileDenies(t *testing.T) {
	profile, err := defaultSeccomp(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: podmans}}})
	if err != nil {
		t.Fatal(err)
	}
	denied := []string{
		"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "bpf", "perf_event_open", "keyctl", "add_key", "request_key",
		"mount", "umount2", "fsopen", "move_mount", "unshare", "setns", "clone3", "open_by_handle_at", "kexec_load", "init_module", "finit_module",
	}
	sockets := false
	for _, rule := range profile.Syscalls {
		for _, name := range rule.Names {
			if slices.Contains(denied, name) && rule.Action == specs.ActAllow {
				t.Errorf("%s is allowed", name)
			}
			if name != "socket" || rule.Action != specs.ActAllow {
				continue
			}
			sockets = true
			for _, family := range []uint64{unix.AF_ALG, unix.AF_VSOCK} {
				a := append(rule.Args, specs.LinuxSeccompArg{})[0]
				if a.Op == "" || a.Op == specs.OpEqualTo && a.Value == family || a.Op == specs.OpLessThan && family < a.Value || a.Op == specs.OpGreaterThan && family > a.Value {
					t.Errorf("a socket of family %d is allowed", family)
				}
			}
		}
	}
	if profile.DefaultAction != specs.ActErrno || !sockets {
		t.Errorf("the profile's default is %s, sockets are allowed: %v", profile.DefaultAction, sockets)
	}
}
