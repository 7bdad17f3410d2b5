// Package systemapi serves the part of huskd's own API that is about huskd and its node as a whole.
package systemapi

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/version"
)

// Server serves the API of the system.
type Server struct {
	huskv1.UnimplementedSystemServer
	// Describe returns what the configuration, the host and the network say.
	Describe func() *huskv1.InfoResponse
	// The owners are nil with network-only.
	Agent      *agent.Agent
	Sandboxes  *sandbox.Service
	Containers *container.Service
	Images     *image.Store
}

// started is when huskd started.
var started = time.Now()

// Info returns what huskd is, what it runs with, and what the node has.
func (s *Server) Info(context.Context, *huskv1.InfoRequest) (*huskv1.InfoResponse, error) {
	out := s.Describe()
	out.Version, out.Commit, out.GoVersion = version.Version, version.Commit(), version.Go()
	out.Pid, out.StartedNs = int32(os.Getpid()), started.UnixNano()
	out.Storage = &huskv1.StorageInfo{Filesystem: filesystem(out.Root)}
	if disk, ok := stats.Filesystem(out.Root); ok {
		out.Storage.TotalBytes, out.Storage.FreeBytes = disk.Bytes, disk.BytesFree
	}
	if s.Agent == nil {
		return out, nil
	}
	out.Storage.Snapshotter = "overlayfs"
	out.Storage.ImageBytes, _ = s.Images.Usage()
	out.Images = int32(len(s.Images.List()))
	out.Pods = countPods(s.Agent.List(), s.Sandboxes.List())
	out.Containers = countContainers(s.Containers.List(""))
	return out, nil
}

// countPods counts the agent's pods, and the sandboxes of others, which are pods of CRI.
func countPods(pods []agent.Pod, sandboxes []sandbox.Status) *huskv1.Count {
	out, own := &huskv1.Count{Total: int32(len(pods))}, map[string]bool{}
	for _, p := range pods {
		if p.Status.Phase == podplan.PhaseRunning {
			out.Running++
		}
		for _, st := range p.Sandboxes {
			own[st.ID] = true
		}
	}
	for _, st := range sandboxes {
		if own[st.ID] {
			continue
		}
		out.Total++
		if st.State == sandboxstate.Ready {
			out.Running++
		}
	}
	return out
}

func countContainers(containers []container.Status) *huskv1.Count {
	out := &huskv1.Count{Total: int32(len(containers))}
	for _, st := range containers {
		if !st.Started.IsZero() && !st.Finished {
			out.Running++
		}
	}
	return out
}

// filesystems are the names of the file systems that a root may be on, by their magic numbers.
var filesystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", 0x2fc12fc1: "zfs",
}

// filesystem returns the name of the file system at path, or "" if it isn't known.
func filesystem(path string) string {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return ""
	}
	return filesystems[int64(st.Type)]
}
