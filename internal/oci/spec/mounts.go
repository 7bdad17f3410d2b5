package spec

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mounter builds mounts.
type mounter struct{ *builder }

// mounts adds the file systems that every container has, then the sandbox's files and the config's
// mounts, parents before children.
func (b mounter) mounts() error {
	var asked []specs.Mount
	at := map[string]int{}
	for i, m := range b.Config.GetMounts() {
		field := fmt.Sprintf("mounts[%d]", i)
		mount, err := b.mount(field, m)
		if err != nil {
			return err
		}
		if first, twice := at[mount.Destination]; twice {
			return b.bad(field+".container_path", "%s is that of mounts[%d] too: remove one", mount.Destination, first)
		}
		at[mount.Destination] = i
		asked = append(asked, mount)
	}
	covered := func(dst string) bool {
		for ; dst != "/"; dst = path.Dir(dst) {
			if _, ok := at[dst]; ok {
				return true
			}
		}
		return false
	}
	if b.security.GetReadonlyRootfs() {
		for _, m := range imageVolumes(b.ImageVolumes) {
			if !covered(m.Destination) {
				asked = append(asked, m)
			}
		}
	}
	for _, m := range b.systemMounts() {
		if !covered(m.Destination) {
			b.spec.Mounts = append(b.spec.Mounts, m)
		}
	}
	var rest []specs.Mount
	for _, m := range b.sandboxMounts() {
		if _, ok := at[m.Destination]; !ok {
			rest = append(rest, m)
		}
	}
	rest = append(rest, asked...)
	slices.SortStableFunc(rest, func(a, b specs.Mount) int {
		return cmp.Compare(strings.Count(a.Destination, "/"), strings.Count(b.Destination, "/"))
	})
	b.spec.Mounts = append(b.spec.Mounts, rest...)
	return nil
}

// systemMounts returns docker's mounts, with its options.
func (b mounter) systemMounts() []specs.Mount {
	access := "ro"
	if b.privileged() {
		access = "rw"
	}
	pts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if b.mapsGroup(ttyGroup) {
		pts = append(pts, fmt.Sprintf("gid=%d", ttyGroup))
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: pts},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		b.sysfs(access),
		{Destination: pathCgroup, Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", access}},
	}
}

// sysfs returns the mount of /sys. sysfs shows the devices of a network namespace, so only the
// owner of that may mount it. A user namespace doesn't own the node's network namespace, so there
// /sys is a bind mount.
func (b mounter) sysfs(access string) specs.Mount {
	if b.hostNetwork() && b.userOptions() != nil {
		return specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "rro", "nosuid", "noexec", "nodev"}}
	}
	return specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}}
}

// systemDirs are directories whose content is the kernel's.
var systemDirs = []string{"/proc/", "/dev/", "/sys/"}

// imageVolumes returns the mounts that keep the image's volumes writable in a read-only root file
// system, as with docker and containerd. The volumes stay parts of the container's writable layer,
// so they have the image's content and owners.
func imageVolumes(volumes map[string]string) []specs.Mount {
	var out []specs.Mount
	for _, dst := range slices.Sorted(maps.Keys(volumes)) {
		if !slices.ContainsFunc(systemDirs, func(dir string) bool { return strings.HasPrefix(dst+"/", dir) }) {
			out = append(out, bind(dst, volumes[dst], "rprivate", "rw"))
		}
	}
	return out
}

// ttyGroup is the group that owns terminals on every distribution.
const ttyGroup = 5

// mapsGroup reports whether gid is mapped in the container's user namespace.
func (b mounter) mapsGroup(gid uint32) bool {
	options := b.userOptions()
	if options == nil {
		return true
	}
	return slices.ContainsFunc(options.GetGids(), func(m *runtimeapi.IDMapping) bool {
		return gid >= m.GetContainerId() && gid-m.GetContainerId() < m.GetLength()
	})
}

// Paths of the sandbox's files in containers.
const (
	pathHosts      = "/etc/hosts"
	pathResolvConf = "/etc/resolv.conf"
	pathHostname   = "/etc/hostname"
	pathShm        = "/dev/shm"
)

const pathCgroup = "/sys/fs/cgroup"

func (b mounter) sandboxMounts() []specs.Mount {
	access := "rw"
	if b.security.GetReadonlyRootfs() {
		access = "ro"
	}
	var out []specs.Mount
	for _, f := range []struct{ dst, src string }{
		{pathHostname, b.Files.Hostname},
		{pathHosts, b.Files.Hosts},
		{pathResolvConf, b.Files.ResolvConf},
	} {
		if f.src != "" {
			out = append(out, bind(f.dst, f.src, "rprivate", access))
			b.relabels(f.src)
		}
	}
	switch {
	case b.hostIPC():
		out = append(out, bind(pathShm, pathShm, "rprivate", "rw", "nosuid", "noexec", "nodev"))
	case b.Files.Shm != "":
		out = append(out, bind(pathShm, b.Files.Shm, "rprivate", "rw", "nosuid", "noexec", "nodev"))
		b.relabels(b.Files.Shm)
	}
	return out
}

func bind(dst, src string, options ...string) specs.Mount {
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: append([]string{"rbind"}, options...)}
}

func (b mounter) relabels(src string) {
	if b.Host.SELinux && !b.privileged() {
		b.relabel = append(b.relabel, src)
	}
}

// mountOptions are the valid Mount.mount_options: those that restrict a bind mount.
var mountOptions = []string{"nodev", "noexec", "nosuid", "noatime", "nodiratime", "nosymfollow", "relatime"}

func (b mounter) mount(field string, m *runtimeapi.Mount) (specs.Mount, error) {
	dst, err := b.destination(field, m.GetContainerPath())
	if err != nil {
		return specs.Mount{}, err
	}
	src := m.GetHostPath()
	switch {
	case src == "":
		return specs.Mount{}, b.bad(field+".host_path", "empty: name what to mount at %s", dst)
	case !strings.HasPrefix(src, "/"):
		return specs.Mount{}, b.bad(field+".host_path", "%q is not absolute: begin it with /", src)
	}
	propagation, err := b.propagation(field, m.GetPropagation())
	if err != nil {
		return specs.Mount{}, err
	}
	access, err := b.access(field, m)
	if err != nil {
		return specs.Mount{}, err
	}
	out := bind(dst, path.Clean(src), propagation, access)
	for _, o := range m.GetMountOptions() {
		if !slices.Contains(mountOptions, o) {
			return specs.Mount{}, b.bad(field+".mount_options", "%q is not one of %s", o, strings.Join(mountOptions, ", "))
		}
		out.Options = append(out.Options, o)
	}
	if len(m.GetUidMappings()) > 0 || len(m.GetGidMappings()) > 0 {
		if !b.Host.IDMap {
			return specs.Mount{}, b.bad(field+".uidMappings", "this host can't map the owners of files in a mount: run the pod without a user namespace")
		}
		out.UIDMappings, out.GIDMappings = mappings(m.GetUidMappings()), mappings(m.GetGidMappings())
	}
	if m.GetSelinuxRelabel() {
		b.relabels(src)
	}
	return out, nil
}

// destination returns the path of a mount in the container. It refuses .., which would hide the
// real path.
func (b mounter) destination(field, dst string) (string, error) {
	field += ".container_path"
	switch {
	case dst == "":
		return "", b.bad(field, "empty: name where to mount")
	case slices.Contains(strings.Split(dst, "/"), ".."):
		return "", b.bad(field, "%q has a ..: use the resolved path", dst)
	}
	// A relative path starts at the root, as in containerd.
	if dst = path.Join("/", dst); dst == "/" {
		return "", b.bad(field, "the root can't be mounted over: use another image")
	}
	return dst, nil
}

// propagation returns the option for a mount's propagation. The runtime makes the root private
// unless the spec says otherwise, as a mount needs that propagates.
func (b mounter) propagation(field string, p runtimeapi.MountPropagation) (string, error) {
	linux := b.spec.Linux
	switch p {
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return "rprivate", nil
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if linux.RootfsPropagation == "" {
			linux.RootfsPropagation = "rslave"
		}
		return "rslave", nil
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		linux.RootfsPropagation = "rshared"
		return "rshared", nil
	}
	return "", b.bad(field+".propagation", "unknown mode %d", p)
}

func (b mounter) access(field string, m *runtimeapi.Mount) (string, error) {
	field += ".recursive_read_only"
	switch {
	case !m.GetRecursiveReadOnly() && m.GetReadonly():
		return "ro", nil
	case !m.GetRecursiveReadOnly():
		return "rw", nil
	case !m.GetReadonly():
		return "", b.bad(field, "needs readonly too")
	case m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return "", b.bad(field, "needs private propagation, not %s", m.GetPropagation())
	case !b.Host.RecursiveReadOnly:
		return "", b.bad(field, "needs Linux 5.12: remove it")
	}
	return "rro", nil
}
