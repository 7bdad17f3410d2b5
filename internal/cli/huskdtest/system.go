package huskdtest

import (
	"context"

	huskv1 "github.com/huskd/husk/api/v1"
)

// system is the fake of huskd's API of the node as a whole.
type system struct {
	huskv1.UnimplementedSystemServer
	h *Huskd
}

// Info returns a constant node with the pods and images that there are.
func (s system) Info(context.Context, *huskv1.InfoRequest) (*huskv1.InfoResponse, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	r := &huskv1.InfoResponse{
		Version: "v1.2.3", Commit: "0123456789abcdef", GoVersion: "go1.26.8", Pid: 4711, StartedNs: 1,
		Node: "node1", Mode: "standalone", Manifests: "/etc/husk/manifests", Socket: "unix:///run/husk/husk.sock", Root: "/var/lib/husk", State: "/run/husk",
		Storage:  &huskv1.StorageInfo{Snapshotter: "overlayfs", Filesystem: "ext4", TotalBytes: 100_000_000_000, FreeBytes: 60_000_000_000},
		Runtimes: []*huskv1.RuntimeInfo{{Name: "runc", Version: "1.1.5", Path: "/usr/sbin/runc"}, {Handler: "gvisor", Name: "runsc", Version: "1", Path: "/usr/bin/runsc", Problem: "no such file"}},
		Network:  &huskv1.NetworkInfo{Mode: "ptp", Cidrs: []string{"10.201.0.0/16"}, Mtu: 1500, Store: "none", Policies: true},
		Host: &huskv1.HostInfo{
			Os: "Debian GNU/Linux 13 (trixie)", Kernel: "6.12.0", Architecture: "amd64", Cpus: 2, MemoryBytes: 8_000_000_000, Cgroups: "v2", CgroupDriver: "cgroupfs", Security: []string{"seccomp"},
		},
		Pods: &huskv1.Count{}, Containers: &huskv1.Count{}, Images: int32(len(s.h.images)),
	}
	for _, i := range s.h.images {
		r.Storage.ImageBytes += i.Size
	}
	for _, p := range s.h.pods {
		r.Pods.Total++
		if p.Phase == "Running" {
			r.Pods.Running++
		}
		for _, c := range p.Containers {
			if c.Id == "" {
				continue
			}
			r.Containers.Total++
			if c.State == "Running" {
				r.Containers.Running++
			}
		}
	}
	return r, nil
}
