package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/selinux"
	"github.com/huskd/husk/internal/sysctl"
	"github.com/huskd/husk/internal/userns"
)

// perform performs one action. Every action can be repeated. Those of the way down succeed on what
// doesn't exist.
func (e *entry) perform(ctx context.Context, do sandboxstate.Action) error {
	ctx, cancel := context.WithTimeout(ctx, owner.ActionTimeout)
	defer cancel()
	switch do {
	case sandboxstate.Pin:
		return e.pin()
	case sandboxstate.Attach:
		return e.attach(ctx)
	case sandboxstate.StartInfra:
		return e.startInfra(ctx)
	case sandboxstate.Kill:
		return e.kill(ctx)
	case sandboxstate.Detach:
		if e.Rec.Attachment.Netns == "" {
			return nil
		}
		return e.s.cfg.Network.Detach(ctx, e.detachment())
	case sandboxstate.Unpin:
		return e.unpin()
	case sandboxstate.Clean:
		if err := e.s.cfg.Containers.RemoveAll(ctx, e.ID); err != nil {
			return err
		}
		return e.notify(ctx, BeforeRemove)
	}
	return fmt.Errorf("unknown action %q", do)
}

// Files are the paths of what a sandbox provides to its containers. Where a path is empty they use
// the host's.
type Files struct {
	Net, IPC, UTS string // pinned namespaces
	User          string // the pinned user namespace that owns them
	Hosts         string
	ResolvConf    string
	Hostname      string
	Shm           string // directory
}

// Files returns the paths for the sandbox with status st.
func (s *Service) Files(st Status) Files {
	dir := filepath.Join(s.cfg.State, "sandboxes", st.ID)
	shared := memory(dir)
	if _, err := os.Lstat(shared); err != nil {
		shared = dir // a sandbox of an older version, or in the node's IPC namespace
	}
	f := Files{
		Net:        st.Attachment.Netns,
		IPC:        filepath.Join(dir, "ipc"),
		UTS:        filepath.Join(dir, "uts"),
		Hosts:      filepath.Join(shared, "hosts"),
		ResolvConf: filepath.Join(shared, "resolv.conf"),
		Hostname:   filepath.Join(shared, "hostname"),
		Shm:        filepath.Join(shared, "shm"),
	}
	if userNamespace(st.Config) != nil {
		f.User = filepath.Join(dir, "user")
	}
	if st.HostNetwork() {
		f.UTS = "" // as with kubelet, a pod in the host's network has the host's name
	}
	if st.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		f.IPC, f.Shm = "", "/dev/shm"
	}
	return f
}

// memory returns the directory, in that of a sandbox, of the files that its containers may write
// to. Its file system is of limited size. A container could otherwise fill that of the state, on
// which the whole node depends (the class of CVE-2020-8557). A pod in the node's IPC namespace has
// none: it can fill the node's /dev/shm as well.
func memory(dir string) string { return filepath.Join(dir, "memory") }

// Cgroup returns the parent of the cgroups of the sandbox's containers: the one that the config
// names, or else one of huskd's.
func (s *Service) Cgroup(st Status) string {
	if named := st.Config.GetLinux().GetCgroupParent(); named != "" {
		parent, _ := s.cfg.Cgroups.Parent(named) // Run has checked it
		return parent
	}
	return filepath.Join(s.cfg.Instance.Cgroup(), pod.QOSClass(st.Config.GetLabels()), cmp.Or(st.cgroup, cgroupName("", st.ID)))
}

// cgroupPrefix begins the names of pods' cgroups, below those of huskd and of the QoS classes.
const cgroupPrefix = "pod"

// cgroupName returns the name of a pod's cgroup: pod, the pod's UID, and digits of the sandbox's
// ID, so that two sandboxes of a pod never share one. The UID is there because a kubelet writes it
// there: agents that attest workloads, profilers, and Kubernetes' own tests read in the path of a
// cgroup whose a process is.
func cgroupName(uid, id string) string {
	if !uidInPath.MatchString(uid) {
		uid = ""
	}
	return cgroupPrefix + uid + "-" + pod.Short(id)
}

var (
	// uidInPath matches UIDs that can be a part of a path. Clients of CRI may use any string.
	uidInPath = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,63}$`)
	// cgroupNames matches what cgroupName returns.
	cgroupNames = regexp.MustCompile(`^` + cgroupPrefix + `[0-9A-Za-z-]*-[0-9a-f]{1,12}$`)
)

// ownsCgroup reports whether the pod's cgroup is huskd's. A client that names one, such as kubelet,
// creates, limits and removes it.
func (e *entry) ownsCgroup() bool { return e.Config.GetLinux().GetCgroupParent() == "" }

func (e *entry) files() Files { return e.s.Files(e.Status()) }

func (e *entry) hostname() string {
	if name := e.Config.GetHostname(); name != "" {
		return name
	}
	name, _ := os.Hostname()
	return name
}

// pin creates the sandbox's cgroup, files and namespaces. The directory is created first and
// removed last, because the sweep finds the rest by it if the record is lost.
func (e *entry) pin() error {
	ids := idsOf(e.Config)
	uid, gid := ids.Root()
	if err := userns.MakeDir(e.dir(), gid); err != nil {
		return err
	}
	if e.options().GetIpc() != runtimeapi.NamespaceMode_NODE {
		if err := os.MkdirAll(memory(e.dir()), 0o700); err != nil {
			return err
		}
		if err := e.s.cfg.Kernel.MountMemory(memory(e.dir()), uid, gid); err != nil {
			return err
		}
	}
	if e.ownsCgroup() {
		if err := e.s.cfg.Cgroups.Create(e.s.Cgroup(e.Status()), e.Config.GetLinux().GetResources()); err != nil {
			return err
		}
	}
	if e.needsInfra() {
		e.stopWarming = e.s.cfg.Prewarm()
	}
	if e.Rec.Labels == (spec.Labels{}) {
		var err error
		if e.Rec.Labels, err = (selinux.Policy{}).Allocate(e.Config.GetLinux().GetSecurityContext().GetSelinuxOptions()); err != nil {
			return err
		}
	}
	f := e.files()
	resolv, err := resolvConf(e.Config.GetDnsConfig())
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		f.Hostname:   e.hostname() + "\n",
		f.ResolvConf: resolv,
		f.Hosts:      "", // written when the addresses are known
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
		if err := os.Chown(path, uid, gid); err != nil {
			return err
		}
	}
	if f.IPC != "" {
		if err := os.MkdirAll(f.Shm, 0o755); err != nil {
			return err
		}
		if err := errors.Join(os.Chown(f.Shm, uid, gid), os.Chmod(f.Shm, os.ModeSticky|0o777)); err != nil {
			return err
		}
	}
	pins := netns.Pins{Net: f.Net, IPC: f.IPC, UTS: f.UTS, User: f.User, Owner: ids, Sysctls: e.sysctls()}
	if f.UTS != "" {
		pins.Hostname = e.hostname()
	}
	if f.Net == "" && f.IPC == "" {
		if len(pins.Sysctls) > 0 {
			return errors.New("sysctls of the host's own namespaces are not set for a pod: remove them, hostNetwork or hostIPC")
		}
		return nil
	}
	return e.s.cfg.Kernel.Pin(pins)
}

// pingGroups is the sysctl of the groups whose processes may open sockets for ICMP echo requests,
// of IPv4 and IPv6, without the capability NET_RAW. allGroups is its widest value. It is written in
// the node's user namespace, so that it includes the groups of a pod with a user namespace; see
// ipv4_ping_group_range in net/ipv4/sysctl_net_ipv4.c.
const (
	pingGroups = "net.ipv4.ping_group_range"
	allGroups  = "0 2147483647"
)

// sysctls returns the sysctls of the sandbox's namespaces: the default ones, and those of its
// config, which override them.
func (e *entry) sysctls() map[string]string {
	out := map[string]string{}
	if e.files().Net != "" {
		out[pingGroups] = allGroups
	}
	for name, value := range e.Config.GetLinux().GetSysctls() {
		out[sysctl.Normalize(name)] = value
	}
	return out
}

func (e *entry) attach(ctx context.Context) error {
	if e.Rec.Attachment.Netns == "" {
		hosts, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.WriteFile(e.files().Hosts, hosts, 0o644)
	}
	a := e.Rec.Attachment
	a.Annotations, a.Cgroup = e.Config.GetAnnotations(), e.s.Cgroup(e.Status())
	if dns := e.Config.GetDnsConfig(); dns != nil {
		a.DNS = &pod.DNS{Servers: dns.GetServers(), Searches: dns.GetSearches(), Options: dns.GetOptions()}
	}
	attached, err := e.s.cfg.Network.Attach(ctx, a)
	if err != nil {
		return err
	}
	e.Rec.Attached = attached
	var addresses []string
	for _, prefix := range attached[0].Addresses {
		addresses = append(addresses, prefix.Addr().String())
	}
	return os.WriteFile(e.files().Hosts, []byte(pod.HostsFile(addresses, e.hostname())), 0o644)
}

// detachment returns the attachment to undo. It names no netns once that is unpinned.
func (e *entry) detachment() pod.Attachment {
	a := e.Rec.Attachment
	if !e.s.cfg.Kernel.Pinned(a.Netns) {
		a.Netns = ""
	}
	return a
}

func (e *entry) kill(ctx context.Context) error {
	if err := e.s.cfg.Containers.StopAll(ctx, e.ID); err != nil {
		return err
	}
	if err := e.notify(ctx, AfterKill); err != nil {
		return err
	}
	return e.removeInfra(ctx)
}

func (e *entry) unpin() error {
	dir := e.dir()
	if e.ownsCgroup() {
		if err := e.s.cfg.Cgroups.Remove(e.s.Cgroup(e.Status())); err != nil {
			return err
		}
	}
	if err := e.s.cfg.Kernel.Unpin(e.Rec.Attachment.Netns); err != nil {
		return err
	}
	if err := e.s.removeDir(dir); err != nil {
		return err
	}
	selinux.Policy{}.Release(e.Rec.Labels)
	return nil
}

// removeDir unpins and unmounts what is in a sandbox's directory, and removes it.
func (s *Service) removeDir(dir string) error {
	err := s.cfg.Kernel.Unpin(filepath.Join(dir, "ipc"), filepath.Join(dir, "uts"), filepath.Join(dir, "user"))
	// An older version mounted shm by itself.
	for _, path := range []string{memory(dir), filepath.Join(dir, "shm")} {
		err = errors.Join(err, s.cfg.Kernel.Unmount(path))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// resolvConf renders the DNS config. Without one it returns the host's file as it is now, as CRI
// asks.
func resolvConf(dns *runtimeapi.DNSConfig) (string, error) {
	if dns == nil {
		host, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		return string(host), nil
	}
	var out strings.Builder
	if len(dns.GetSearches()) > 0 {
		fmt.Fprintf(&out, "search %s\n", strings.Join(dns.GetSearches(), " "))
	}
	for _, server := range dns.GetServers() {
		fmt.Fprintf(&out, "nameserver %s\n", server)
	}
	if len(dns.GetOptions()) > 0 {
		fmt.Fprintf(&out, "options %s\n", strings.Join(dns.GetOptions(), " "))
	}
	return out.String(), nil
}
