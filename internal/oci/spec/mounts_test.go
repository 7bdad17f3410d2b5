package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// destinations returns the destinations of the mounts, in order.
func destinations(s *specs.Spec) []string {
	var out []string
	for _, m := range s.Mounts {
		out = append(out, m.Destination)
	}
	return out
}

func mountAt(s *specs.Spec, dst string) specs.Mount {
	for _, m := range s.Mounts {
		if m.Destination == dst {
			return m
		}
	}
	return specs.Mount{}
}

func TestMountOrder(t *testing.T) {
	t.Parallel()
	system := "/proc /dev /dev/pts /dev/mqueue /sys /sys/fs/cgroup"
	files := "/etc/hostname /etc/hosts /etc/resolv.conf /dev/shm"
	for _, c := range []struct{ mounts, want string }{
		{"", system + " " + files},
		{"/a/b/c /a /a/b", system + " /a " + files + " /a/b /a/b/c"},
		{"//x/./y/", system + " " + files + " /x/y"},
		{"relative/path", system + " " + files + " /relative/path"},
		{"/etc/hosts /dev/shm", system + " /etc/hostname /etc/resolv.conf /etc/hosts /dev/shm"},
		{"/etc", system + " /etc " + files}, // the sandbox's files stay visible
		{"/dev", "/proc /sys /sys/fs/cgroup /dev " + files},
		{"/sys", "/proc /dev /dev/pts /dev/mqueue /sys " + files}, // all of the host's, cgroups too
		{"/dev/pts", "/proc /dev /dev/mqueue /sys /sys/fs/cgroup " + files + " /dev/pts"},
		{"/proc/self", system + " " + files + " /proc/self"},
	} {
		got := must(t, with(func(r *Request) {
			for _, m := range strings.Fields(c.mounts) {
				r.Config.Mounts = append(r.Config.Mounts, &runtimeapi.Mount{ContainerPath: m, HostPath: "/h"})
			}
		})).Spec
		if got := strings.Join(destinations(got), " "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.mounts, got, c.want)
		}
	}
}

// TestImageVolumes: volumes of the image stay writable in a read-only root file system, except
// where something else is mounted.
func TestImageVolumes(t *testing.T) {
	t.Parallel()
	for _, readonly := range []bool{false, true} {
		got := must(t, with(func(r *Request) {
			r.Config.Linux.SecurityContext.ReadonlyRootfs = readonly
			r.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mounted", HostPath: "/h"}}
			r.ImageVolumes = map[string]string{"/data": "/root/real", "/mounted/below": "/root/below", "/proc/x": "/root/proc/x", "/dev": "/root/dev"}
		})).Spec
		if m := mountAt(got, "/data"); (m.Source == "/root/real" && slices.Contains(m.Options, "rw")) != readonly {
			t.Errorf("read-only root file system %v: /data is %v", readonly, m)
		}
		for _, dst := range []string{"/mounted/below", "/proc/x"} {
			if m := mountAt(got, dst); m.Destination != "" {
				t.Errorf("a volume covers %v", m)
			}
		}
		if m := mountAt(got, "/dev"); m.Type != "tmpfs" {
			t.Errorf("/dev is %v", m)
		}
	}
}

func TestMountOptions(t *testing.T) {
	t.Parallel()
	const (
		slave  = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		shared = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	)
	for _, c := range []struct {
		mount        *runtimeapi.Mount
		want, rootfs string
		secondSlave  bool
	}{
		{mount: &runtimeapi.Mount{}, want: "rbind,rprivate,rw"},
		{mount: &runtimeapi.Mount{Readonly: true}, want: "rbind,rprivate,ro"},
		{mount: &runtimeapi.Mount{Readonly: true, RecursiveReadOnly: true}, want: "rbind,rprivate,rro"},
		{mount: &runtimeapi.Mount{Propagation: slave}, want: "rbind,rslave,rw", rootfs: "rslave"},
		{mount: &runtimeapi.Mount{Propagation: shared}, want: "rbind,rshared,rw", rootfs: "rshared"},
		{mount: &runtimeapi.Mount{Propagation: shared}, want: "rbind,rshared,rw", rootfs: "rshared", secondSlave: true},
		{mount: &runtimeapi.Mount{MountOptions: []string{"noexec", "nosuid"}}, want: "rbind,rprivate,rw,noexec,nosuid"},
	} {
		out := must(t, with(func(r *Request) {
			c.mount.ContainerPath, c.mount.HostPath = "/m", "/h/../h/m/"
			r.Config.Mounts = []*runtimeapi.Mount{c.mount}
			if c.secondSlave {
				r.Config.Mounts = append(r.Config.Mounts, &runtimeapi.Mount{ContainerPath: "/n", HostPath: "/h", Propagation: slave})
			}
		}))
		m := mountAt(out.Spec, "/m")
		if got := strings.Join(m.Options, ","); got != c.want || m.Type != "bind" || m.Source != "/h/m" {
			t.Errorf("%v: %+v, want %s", c.mount, m, c.want)
		}
		if got := out.Spec.Linux.RootfsPropagation; got != c.rootfs {
			t.Errorf("%v: rootfs %q, want %q", c.mount, got, c.rootfs)
		}
	}
}

func TestBadMounts(t *testing.T) {
	t.Parallel()
	good := func() *runtimeapi.Mount { return &runtimeapi.Mount{ContainerPath: "/m", HostPath: "/h"} }
	for words, change := range map[string]func(m *runtimeapi.Mount, r *Request){
		"mounts[0].container_path: empty":               func(m *runtimeapi.Mount, _ *Request) { m.ContainerPath = "" },
		`mounts[0].container_path: "/a/../b" has a ..`:  func(m *runtimeapi.Mount, _ *Request) { m.ContainerPath = "/a/../b" },
		`mounts[0].container_path: ".." has a ..`:       func(m *runtimeapi.Mount, _ *Request) { m.ContainerPath = ".." },
		"mounts[0].container_path: the root":            func(m *runtimeapi.Mount, _ *Request) { m.ContainerPath = "/./" },
		"mounts[0].host_path: empty":                    func(m *runtimeapi.Mount, _ *Request) { m.HostPath = "" },
		`mounts[0].host_path: "h" is not absolute`:      func(m *runtimeapi.Mount, _ *Request) { m.HostPath = "h" },
		"mounts[0].propagation: unknown mode 7":         func(m *runtimeapi.Mount, _ *Request) { m.Propagation = 7 },
		"mounts[0].recursive_read_only: needs readonly": func(m *runtimeapi.Mount, _ *Request) { m.RecursiveReadOnly = true },
		"mounts[0].recursive_read_only: needs private":  func(m *runtimeapi.Mount, _ *Request) { m.Readonly, m.RecursiveReadOnly, m.Propagation = true, true, 1 },
		"mounts[0].recursive_read_only: needs Linux 5.12": func(m *runtimeapi.Mount, r *Request) {
			m.Readonly, m.RecursiveReadOnly, r.Host.RecursiveReadOnly = true, true, false
		},
		`mounts[0].mount_options: "suid" is not one of`: func(m *runtimeapi.Mount, _ *Request) { m.MountOptions = []string{"suid"} },
		"mounts[0].uidMappings: this host": func(m *runtimeapi.Mount, r *Request) {
			m.UidMappings, r.Host.IDMap = []*runtimeapi.IDMapping{{}}, false
		},
		"mounts[1].container_path: /m is that of mounts[0]": func(_ *runtimeapi.Mount, r *Request) {
			r.Config.Mounts = append(r.Config.Mounts, &runtimeapi.Mount{ContainerPath: "/m/", HostPath: "/x"})
		},
	} {
		m := good()
		_, err := Container(with(func(r *Request) {
			r.Config.Mounts = []*runtimeapi.Mount{m}
			change(m, r)
		}))
		fails(t, err, words)
	}
}

func TestSandboxFiles(t *testing.T) {
	t.Parallel()
	if got := mountAt(must(t, with(func(r *Request) { r.Files = Files{} })).Spec, "/etc/hosts"); got.Source != "" {
		t.Errorf("/etc/hosts without files is %+v", got)
	}
	readonly := must(t, with(func(r *Request) { security(r).ReadonlyRootfs = true })).Spec
	if got := mountAt(readonly, "/etc/hosts").Options; !slices.Contains(got, "ro") {
		t.Errorf("options of /etc/hosts with a read-only root are %v", got)
	}
	if got := mountAt(readonly, "/dev/shm").Options; !slices.Contains(got, "rw") {
		t.Errorf("options of /dev/shm with a read-only root are %v", got)
	}
	hostIPC := must(t, with(func(r *Request) {
		r.Sandbox.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
	})).Spec
	if got := mountAt(hostIPC, "/dev/shm").Source; got != "/dev/shm" {
		t.Errorf("source of /dev/shm with host IPC is %s", got)
	}
}

func TestUserNamespaceMounts(t *testing.T) {
	t.Parallel()
	change := func(network runtimeapi.NamespaceMode, length uint32) func(*Request) {
		return func(r *Request) {
			ids := []*runtimeapi.IDMapping{{HostId: 100000, Length: length}}
			o := r.Sandbox.Linux.SecurityContext.NamespaceOptions
			o.Network, o.UsernsOptions = network, &runtimeapi.UserNamespace{Uids: ids, Gids: ids}
			security(r).NamespaceOptions = o
			r.Namespaces.User = "/u"
		}
	}
	small := must(t, with(change(runtimeapi.NamespaceMode_POD, 5))).Spec
	if got := mountAt(small, "/dev/pts").Options; slices.Contains(got, "gid=5") {
		t.Errorf("options of /dev/pts without a mapped group 5 are %v", got)
	}
	big := must(t, with(change(runtimeapi.NamespaceMode_POD, 65536))).Spec
	if got := mountAt(big, "/dev/pts").Options; !slices.Contains(got, "gid=5") {
		t.Errorf("options of /dev/pts with a mapped group 5 are %v", got)
	}
	if got := mountAt(big, "/sys").Type; got != "sysfs" {
		t.Errorf("type of /sys with an own network is %s", got)
	}
	if got := mountAt(must(t, with(change(runtimeapi.NamespaceMode_NODE, 65536))).Spec, "/sys").Type; got != "bind" {
		t.Errorf("type of /sys with the node's network is %s", got)
	}
}

func TestRelabel(t *testing.T) {
	t.Parallel()
	relabel := func(f func(*Request)) []string {
		return must(t, with(func(r *Request) {
			r.Host.SELinux = true
			r.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/a", HostPath: "/h/a", SelinuxRelabel: true}, {ContainerPath: "/b", HostPath: "/h/b"}}
			f(r)
		})).Relabel
	}
	want := []string{"/h/a", "/s/hostname", "/s/hosts", "/s/resolv.conf", "/s/shm"}
	if got := relabel(func(*Request) {}); !slices.Equal(got, want) {
		t.Errorf("relabel paths are %v, want %v", got, want)
	}
	for name, f := range map[string]func(*Request){
		"no SELinux": func(r *Request) { r.Host.SELinux = false },
		"privileged": func(r *Request) { security(r).Privileged, r.Sandbox.Linux.SecurityContext.Privileged = true, true },
	} {
		if got := relabel(f); len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}
