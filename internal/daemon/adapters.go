package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/plugin"
	"github.com/huskd/husk/internal/plugin/rpc"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// images are what containers see of the image store.
type images struct{ *image.Store }

func (i images) Image(_ context.Context, name string) (container.Image, error) {
	img, err := i.Get(name)
	if err != nil {
		return container.Image{}, err
	}
	lower, err := i.Rootfs(img.ID)
	out := container.Image{ID: img.ID, Name: name, Lower: lower, Config: img.Config}
	if len(img.Tags) > 0 {
		out.Name = img.Tags[0]
	}
	return out, err
}

// sandboxes are what containers see of their sandboxes.
type sandboxes struct{ d *daemon }

func (s sandboxes) Sandbox(id string) (container.Sandbox, error) {
	st, err := s.d.sandboxes.Get(id)
	if err != nil {
		return container.Sandbox{}, err
	}
	if st.State != sandboxstate.Ready {
		return container.Sandbox{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("sandbox %s of pod %s is %s: no container can be created in it", pod.Short(id), st.Ref(), st.State))
	}
	files := s.d.sandboxes.Files(st)
	out := container.Sandbox{
		Config:     st.Config,
		Handler:    st.Handler,
		Namespaces: spec.Namespaces{Net: files.Net, IPC: files.IPC, UTS: files.UTS, User: files.User},
		Files:      spec.Files{Hosts: files.Hosts, ResolvConf: files.ResolvConf, Hostname: files.Hostname, Shm: files.Shm},
		Cgroup:     s.d.sandboxes.Cgroup(st),
		Labels:     st.Labels,
	}
	shared := st.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_POD
	if st.Infra != nil && shared {
		out.Namespaces.PID = fmt.Sprintf("/proc/%d/ns/pid", st.Infra.PID)
	}
	return out, nil
}

// Pod names the pod of a sandbox, as far as it is known.
func (s sandboxes) Pod(id string) pod.Ref {
	st, err := s.d.sandboxes.Get(id)
	if err != nil {
		return pod.Ref{}
	}
	return st.Ref()
}

// The node's resolver configuration. Where systemd-resolved has put a stub on
// the node's loopback, which no pod can reach, the real one is elsewhere.
const (
	resolvConf     = "/etc/resolv.conf"
	realResolvConf = "/run/systemd/resolve/resolv.conf"
	stub           = "nameserver 127.0.0.53"
)

// debts returns the DELs that are owed. Of the built-in network only those that failed count: each
// deleted link waits a moment for others, to be deleted with them.
func (d *daemon) debts() (list []pod.Debt) {
	for _, a := range d.cni.Attachments() {
		if a.Owed() {
			list = append(list, pod.Debt{Attachment: a.Attachment, Network: a.Network, Since: a.Since, Tries: a.Tries, Error: a.Error})
		}
	}
	for _, debt := range d.network.Usage().Debts {
		if debt.Error != "" {
			list = append(list, debt)
		}
	}
	return list
}

// dial connects a client of the API to a port of a sandbox.
func (d *daemon) dial(ctx context.Context, sandbox string, port int32, client io.ReadWriteCloser) error {
	return d.streams.Dial(ctx, sandbox, port, client)
}

// callPlugin is the plugin husk-cni for configurations that name it.
func (d *daemon) callPlugin(ctx context.Context, getenv func(string) string, stdin []byte) ([]byte, error) {
	return d.plugin.Call(ctx, plugin.ArgsOf(getenv), stdin)
}

func (d *daemon) createCgroup(path string, r *runtimeapi.LinuxContainerResources) error {
	return d.cgroups.Create(path, cgroup.Limits{
		CPUShares: uint64(r.GetCpuShares()), CPUQuota: r.GetCpuQuota(), CPUPeriod: uint64(r.GetCpuPeriod()),
		Memory: r.GetMemoryLimitInBytes(),
	})
}

// knowCgroups takes note of what the pods of before weigh.
func (d *daemon) knowCgroups() {
	for _, st := range d.sandboxes.List() {
		if st.State != sandboxstate.Stopped && st.State != sandboxstate.Removing {
			d.cgroups.Adopt(d.sandboxes.Cgroup(st), uint64(st.Config.GetLinux().GetResources().GetCpuShares()))
		}
	}
	d.cgroups.RemoveEmpty(pod.QOSClasses...)
}

// attend answers husk-cni, which comes to the same socket as everybody. What is
// begun when huskd ends is cut, as a crash would: the next call goes on.
func (d *daemon) attend(ctx context.Context) func(net.Conn) {
	p := &plugin.Plugin{Log: d.log}
	return func(conn net.Conn) { rpc.Serve(ctx, conn, p.Call) }
}

// nodeFacts returns what says how the node is now.
func nodeFacts(cfg config.Config, f host.Facts) func() criconfig.Node {
	fixed := criconfig.Node{
		Name: nodeName(cfg), ClusterDNS: cfg.ClusterDNS, ClusterDomain: cfg.ClusterDomain, Memory: f.Memory, CPUs: f.CPUs, Unified: f.Cgroup.Mode.Unified(),
		HugePages: f.Cgroup.HugePages, RecursiveReadOnly: f.RecursiveReadOnly,
		Logs: filepath.Join(cfg.Root, "logs"), Seccomp: "/var/lib/kubelet/seccomp",
	}
	return func() criconfig.Node {
		n := fixed
		n.IPs = nodeIPs()
		n.ResolvConf, _ = os.ReadFile(resolvConf)
		if strings.Contains(string(n.ResolvConf), stub) {
			if content, err := os.ReadFile(realResolvConf); err == nil {
				n.ResolvConf = content
			}
		}
		return n
	}
}

// nodeIPs are the addresses from which the node reaches others, by family. No
// packet is sent: connecting a datagram socket only asks for the route.
func nodeIPs() []string {
	var ips []string
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			ips = append(ips, a.IP.String())
		}
		_ = conn.Close()
	}
	return ips
}
