package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// act performs one action. Each can be repeated, and each of the way down
// succeeds on what isn't there.
func (b *box) act(ctx context.Context, do sandboxstate.Action) error {
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	switch do {
	case sandboxstate.Pin:
		return b.pin()
	case sandboxstate.Attach:
		return b.attach(ctx)
	case sandboxstate.StartInfra:
		return b.startInfra(ctx)
	case sandboxstate.Kill:
		return b.kill(ctx)
	case sandboxstate.Detach:
		if b.rec.Attachment.Netns == "" {
			return nil
		}
		return b.s.cfg.Network.Detach(ctx, b.detachment())
	case sandboxstate.Unpin:
		return b.unpin()
	case sandboxstate.Clean:
		if err := b.s.cfg.Containers.RemoveAll(ctx, b.id); err != nil {
			return err
		}
		return hooked{b}.tell(ctx, BeforeRemove)
	}
	return fmt.Errorf("unknown action %q", do)
}

// Files are the paths of what a sandbox gives its containers. An empty path
// means that they have the host's.
type Files struct {
	Net, IPC, UTS string // pinned namespaces
	User          string // the one that owns them
	Hosts         string
	ResolvConf    string
	Hostname      string
	Shm           string // directory
}

// Files returns the paths for the sandbox with status st.
func (s *Service) Files(st Status) Files {
	dir := filepath.Join(s.cfg.State, "sandboxes", st.ID)
	f := Files{
		Net:        st.Attachment.Netns,
		IPC:        filepath.Join(dir, "ipc"),
		UTS:        filepath.Join(dir, "uts"),
		Hosts:      filepath.Join(dir, "hosts"),
		ResolvConf: filepath.Join(dir, "resolv.conf"),
		Hostname:   filepath.Join(dir, "hostname"),
		Shm:        filepath.Join(dir, "shm"),
	}
	if userNamespace(st.Config) != nil {
		f.User = filepath.Join(dir, "user")
	}
	if st.HostNetwork() {
		f.UTS = "" // a pod in the host's network has the host's name, as kubelet has it
	}
	if st.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		f.IPC, f.Shm = "", "/dev/shm"
	}
	return f
}

// Cgroup is the parent of the cgroups of the sandbox's containers. It is ours
// if the config named none.
func (s *Service) Cgroup(st Status) string {
	if parent := st.Config.GetLinux().GetCgroupParent(); parent != "" {
		if s.cfg.CgroupParent != nil {
			parent, _ = s.cfg.CgroupParent(parent) // Run has checked it
		}
		return parent
	}
	return filepath.Join(s.cfg.Instance.Cgroup(), pod.QOSClass(st.Config.GetLabels()), "pod-"+pod.Short(st.ID))
}

// ownsCgroup says that the pod's cgroup is ours: who names one makes it, limits
// it and removes it, as kubelet does.
func (b *box) ownsCgroup() bool { return b.config.GetLinux().GetCgroupParent() == "" }

func (b *box) files() Files { return b.s.Files(b.status()) }

func (b *box) hostname() string {
	if name := b.config.GetHostname(); name != "" {
		return name
	}
	name, _ := os.Hostname()
	return name
}

// pin makes the sandbox's cgroup, files and namespaces. The directory comes first
// and goes last: by it the rest is found, should the record be lost.
func (b *box) pin() error {
	if err := os.MkdirAll(b.dir(), 0o711); err != nil {
		return err
	}
	if b.ownsCgroup() {
		if err := b.s.cfg.CreateCgroup(b.s.Cgroup(b.status()), b.config.GetLinux().GetResources()); err != nil {
			return err
		}
	}
	if labels := b.s.cfg.Labels; labels != nil && b.rec.Labels == (spec.Labels{}) {
		var err error
		if b.rec.Labels, err = labels.Allocate(b.config.GetLinux().GetSecurityContext().GetSelinuxOptions()); err != nil {
			return err
		}
	}
	f := b.files()
	resolv, err := resolvConf(b.config.GetDnsConfig())
	if err != nil {
		return err
	}
	owner := ownerOf(b.config)
	uid, gid := owner.Root()
	for path, content := range map[string]string{
		f.Hostname:   b.hostname() + "\n",
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
		if err := b.s.cfg.Kernel.MountShm(f.Shm, uid, gid); err != nil {
			return err
		}
	}
	pins := netns.Pins{Net: f.Net, IPC: f.IPC, UTS: f.UTS, User: f.User, Owner: owner, Sysctls: b.config.GetLinux().GetSysctls()}
	if f.UTS != "" {
		pins.Hostname = b.hostname()
	}
	if f.Net == "" && f.IPC == "" {
		if len(pins.Sysctls) > 0 {
			return errors.New("sysctls of the host's own namespaces are not set for a pod: remove them, hostNetwork or hostIPC")
		}
		return nil
	}
	return b.s.cfg.Kernel.Pin(pins)
}

func (b *box) attach(ctx context.Context) error {
	if b.rec.Attachment.Netns == "" {
		hosts, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.WriteFile(b.files().Hosts, hosts, 0o644)
	}
	a := b.rec.Attachment
	a.Annotations, a.Cgroup = b.config.GetAnnotations(), b.s.Cgroup(b.status())
	if dns := b.config.GetDnsConfig(); dns != nil {
		a.DNS = &pod.DNS{Servers: dns.GetServers(), Searches: dns.GetSearches(), Options: dns.GetOptions()}
	}
	attached, err := b.s.cfg.Network.Attach(ctx, a)
	if err != nil {
		return err
	}
	b.rec.Attached = attached
	var addresses []string
	for _, prefix := range attached[0].Addresses {
		addresses = append(addresses, prefix.Addr().String())
	}
	return os.WriteFile(b.files().Hosts, []byte(pod.HostsFile(addresses, b.hostname())), 0o644)
}

// detachment is the attachment to be undone. Once the pin is gone there is no
// namespace to name.
func (b *box) detachment() pod.Attachment {
	a := b.rec.Attachment
	if !b.s.cfg.Kernel.Pinned(a.Netns) {
		a.Netns = ""
	}
	return a
}

func (b *box) kill(ctx context.Context) error {
	if err := b.s.cfg.Containers.StopAll(ctx, b.id); err != nil {
		return err
	}
	if err := (hooked{b}).tell(ctx, AfterKill); err != nil {
		return err
	}
	if !b.needsInfra() {
		return nil
	}
	return b.s.cfg.Runtime.Delete(ctx, b.id)
}

func (b *box) unpin() error {
	dir := b.dir()
	if b.ownsCgroup() {
		if err := b.s.cfg.RemoveCgroup(b.s.Cgroup(b.status())); err != nil {
			return err
		}
	}
	err := b.s.cfg.Kernel.Unpin(b.rec.Attachment.Netns, filepath.Join(dir, "ipc"), filepath.Join(dir, "uts"), filepath.Join(dir, "user"))
	if err := errors.Join(err, b.s.cfg.Kernel.Unmount(filepath.Join(dir, "shm"))); err != nil {
		return err
	}
	if b.s.cfg.Labels != nil {
		b.s.cfg.Labels.Release(b.rec.Labels)
	}
	return os.RemoveAll(dir)
}

// resolvConf renders the DNS config; without one, the host's file is taken as
// it is at that moment, as CRI says.
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
