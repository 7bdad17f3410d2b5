package daemon

import (
	"net/url"
	"runtime"

	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/api/debugapi"
	"github.com/huskd/husk/internal/api/manifestapi"
	"github.com/huskd/husk/internal/api/storageapi"
	"github.com/huskd/husk/internal/api/systemapi"
	"github.com/huskd/husk/internal/cluster/registration"
	"github.com/huskd/husk/internal/config"
)

// registerSystem registers the parts of the API that are about the node as a whole, its disk space
// and its manifests. The latter two are there with network-only too, so that their methods are
// refused with the reason.
func registerSystem(d *daemon, to grpc.ServiceRegistrar) {
	huskv1.RegisterSystemServer(to, &systemapi.Server{
		Describe: func() *huskv1.InfoResponse { return describe(d) },
		Agent:    d.agent, Sandboxes: d.sandboxes, Containers: d.containers, Images: d.images,
	})
	huskv1.RegisterStorageServer(to, &storageapi.Server{
		Agent: d.agent, Workloads: d.workloads, Objects: d.objects, Sandboxes: d.sandboxes, Containers: d.containers, Images: d.images,
		Volumes: d.volumes(), Pinned: d.disk().IsPinned,
	})
	huskv1.RegisterManifestsServer(to, &manifestapi.Server{Agent: d.agent})
}

// registerDebugging registers the part of the API that adds containers to running pods.
func registerDebugging(d *daemon, to grpc.ServiceRegistrar) {
	huskv1.RegisterDebuggingServer(to, &debugapi.Server{Agent: d.agent, Images: d.images})
}

// describe returns what the configuration, the host and the network say.
func describe(d *daemon) *huskv1.InfoResponse {
	out := &huskv1.InfoResponse{
		Node: nodeName(d.cfg), Mode: "standalone", Manifests: d.cfg.Manifests, Socket: d.cfg.Listen, Root: d.cfg.Root, State: d.cfg.State,
		Network: describeNetwork(d), Host: describeHost(d),
	}
	if t := d.cfg.Translation; t != nil {
		out.KubeletConfig = t.Files
	}
	if u, err := url.Parse(d.cfg.Web); err == nil {
		out.ManifestUrl = u.Redacted()
	}
	switch {
	case d.cfg.NetworkOnly:
		out.Mode = "network-only"
		return out
	case d.membership != nil:
		out.Mode, out.ApiServer = "cluster", d.membership.server()
	}
	for _, h := range d.handlers.List() {
		r := &huskv1.RuntimeInfo{Handler: h.Name, Name: h.Runtime, Version: h.Version, Path: h.Path}
		if h.Missing != nil {
			r.Problem = h.Missing.Error()
		}
		out.Runtimes = append(out.Runtimes, r)
	}
	return out
}

// server returns the URL of the API server, or "" while this machine is not a node yet.
func (m *membership) server() string {
	select {
	case <-m.connection:
		return m.client.Server
	default:
		return ""
	}
}

func describeNetwork(d *daemon) *huskv1.NetworkInfo {
	out := &huskv1.NetworkInfo{Store: config.StoreNone, Policies: d.policy.Owner() != nil, Services: d.services.Balancer() != nil}
	settings, err := d.network.Settings()
	if err != nil {
		out.Problem = err.Error()
	}
	out.Mode, out.Mtu = string(settings.Mode), int32(settings.MTU)
	for _, subnet := range settings.Subnets {
		out.Cidrs = append(out.Cidrs, subnet.String())
	}
	if c := d.nodes.Controller(); c != nil {
		out.Store, out.Backend = c.Store(), string(c.Backend())
	}
	if d.cni != nil {
		for _, n := range d.cni.Networks().Networks {
			out.Cni = append(out.Cni, n.List.Name)
		}
	}
	return out
}

func describeHost(d *daemon) *huskv1.HostInfo {
	out := &huskv1.HostInfo{
		Os: registration.OSImage(), Kernel: d.facts.Kernel, Architecture: runtime.GOARCH, Cpus: int32(d.facts.CPUs), MemoryBytes: d.facts.Memory,
		Cgroups: string(d.facts.Cgroup.Mode), CgroupDriver: d.cfg.CgroupDriver,
	}
	for _, s := range []struct {
		name string
		on   bool
	}{{"seccomp", d.facts.Seccomp}, {"AppArmor", d.facts.AppArmor}, {"SELinux", d.facts.SELinux}} {
		if s.on {
			out.Security = append(out.Security, s.name)
		}
	}
	return out
}
