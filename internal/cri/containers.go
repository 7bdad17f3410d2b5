package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
)

// containers implements the methods about containers.
type containers struct{ *view }

// containerKey has what can change of a container in a list. The configuration is replaced as a
// whole, if at all.
type containerKey struct {
	config *runtimeapi.ContainerConfig
	state  runtimeapi.ContainerState
	image  string
}

// CreateContainer creates a container in a ready sandbox. A concurrent call for the same container
// waits for the first.
func (c containers) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	switch {
	case req.GetConfig() == nil:
		return nil, invalid("container config is missing")
	case req.GetConfig().GetImage().GetImage() == "":
		return nil, invalid("container %.80q: image is empty: name one", req.GetConfig().GetMetadata().GetName())
	}
	sandbox, err := c.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := c.Containers.Create(ctx, sandbox.ID, req.GetConfig())
	if err != nil {
		return nil, imageMount(precondition(err))
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: st.ID}, nil
}

// imageMount puts before the error of an image volume the word by which the kubelet recognizes it,
// at the beginning of the message.
func imageMount(err error) error {
	if refusal := (*container.ImageMountError)(nil); errors.As(err, &refusal) {
		return fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
	}
	return err
}

// StartContainer starts a created container.
func (c containers) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	st, err := c.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.StartContainerResponse{}, precondition(c.Containers.Start(ctx, st.ID))
}

// StopContainer stops a container. It succeeds if there is no such container.
func (c containers) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	grace := time.Duration(min(max(req.GetTimeout(), 0), int64(maxGrace/time.Second))) * time.Second
	st, err := c.container(req.GetContainerId())
	if err == nil {
		err = c.Containers.Stop(ctx, st.ID, grace)
	}
	return &runtimeapi.StopContainerResponse{}, ignoreNotFound(err)
}

// maxGrace bounds a timeout, whose seconds could overflow a duration.
const maxGrace = 100 * 365 * 24 * time.Hour

// RemoveContainer removes a container, and stops it first if it runs.
func (c containers) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	st, err := c.container(req.GetContainerId())
	if err == nil {
		err = c.Containers.Remove(ctx, st.ID)
	}
	return &runtimeapi.RemoveContainerResponse{}, ignoreNotFound(err)
}

// ListContainers lists containers, newest first.
func (c containers) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	list, err := c.list(req.GetFilter())
	if err != nil {
		return nil, err
	}
	r := &runtimeapi.ListContainersResponse{}
	return r, c.containerList.put(r, len(list), unfiltered(req.GetFilter()), func(i int) (string, containerKey, func() proto.Message) {
		st := &list[i]
		return st.ID, containerKey{st.Config, containerState(*st), st.ImageID}, func() proto.Message { return listed(st) }
	})
}

// StreamContainers is ListContainers for lists of any length.
func (c containers) StreamContainers(req *runtimeapi.StreamContainersRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	list, err := c.list(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(part []container.Status) error {
		r := &runtimeapi.StreamContainersResponse{}
		for i := range part {
			r.Containers = append(r.Containers, listed(&part[i]))
		}
		return to.Send(r)
	})
}

func (c containers) list(filter *runtimeapi.ContainerFilter) ([]container.Status, error) {
	state := filter.GetState()
	return c.containers(filter.GetId(), filter.GetPodSandboxId(), filter.GetLabelSelector(), func(st *container.Status) bool {
		return state == nil || containerState(*st) == state.GetState()
	})
}

// unfiltered reports whether a filter, which may be nil, matches everything.
func unfiltered(filter proto.Message) bool { return proto.Size(filter) == 0 }

// listed returns a container as it appears in lists.
func listed(st *container.Status) *runtimeapi.Container {
	return &runtimeapi.Container{
		Id: st.ID, PodSandboxId: st.Sandbox, Metadata: st.Config.GetMetadata(), Image: st.Config.GetImage(),
		ImageRef: st.ImageID, ImageId: st.ImageID, State: containerState(*st), CreatedAt: st.Created.UnixNano(),
		Labels: st.Config.GetLabels(), Annotations: st.Config.GetAnnotations(),
	}
}

// containers returns the containers with the ID, in the sandbox, with the labels, for which keep
// returns true. An empty ID matches any.
func (v *view) containers(id, sandbox string, labels map[string]string, keep func(*container.Status) bool) ([]container.Status, error) {
	named := id != "" || sandbox != ""
	if sandbox != "" {
		in, err := v.sandbox(sandbox)
		if err != nil {
			return nil, ignoreNotFound(err)
		}
		sandbox = in.ID
	}
	matches := func(st *container.Status) bool {
		return created(*st) && (sandbox == "" || st.Sandbox == sandbox) && selected(st.Config.GetLabels(), labels, named) && keep(st)
	}
	switch {
	case id != "":
		st, err := v.container(id)
		if err != nil || !matches(&st) {
			return nil, ignoreNotFound(err)
		}
		return []container.Status{st}, nil
	case sandbox != "":
		return slices.DeleteFunc(v.Containers.List(sandbox), func(st container.Status) bool { return !matches(&st) }), nil
	}
	return v.Containers.Select(matches), nil
}

// created reports whether the container's creation has finished: before that, no client has its ID.
func created(st container.Status) bool {
	switch st.State {
	case containerstate.Reserved, containerstate.Mounting, containerstate.Creating:
		return false
	}
	return true
}

func containerState(st container.Status) runtimeapi.ContainerState {
	switch {
	case st.Finished:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case st.State == containerstate.Running:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case st.State == containerstate.Releasing, st.State == containerstate.Exited, st.State == containerstate.Removing:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return runtimeapi.ContainerState_CONTAINER_CREATED
}

// ContainerStatus returns the status of a container.
func (c containers) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	st, err := c.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	r := &runtimeapi.ContainerStatusResponse{Status: c.containerStatus(st)}
	if req.GetVerbose() {
		r.Info, err = c.containerInfo(st)
	}
	return r, err
}

func (v *view) containerStatus(st container.Status) *runtimeapi.ContainerStatus {
	config := st.Config
	out := &runtimeapi.ContainerStatus{
		Id: st.ID, Metadata: config.GetMetadata(), State: containerState(st),
		CreatedAt: st.Created.UnixNano(), StartedAt: nanoseconds(st.Started),
		Image: config.GetImage(), ImageRef: st.ImageID, ImageId: st.ImageID,
		Reason: st.Reason, Message: st.Message,
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		Mounts: st.Mounts(), LogPath: st.Log, StopSignal: st.Signal(),
		Resources: &runtimeapi.ContainerResources{Linux: v.limits(st)},
	}
	named := config.GetImage().GetUserSpecifiedImage()
	if img, err := v.Images.Get(st.ImageID); err == nil {
		if len(img.Digests) > 0 {
			out.ImageRef = img.Digests[0]
		}
		// A kubelet before 1.28 names images only by their IDs, and shows in the pod's status
		// what is returned here.
		if names := slices.Concat(img.Tags, img.Digests); named == "" && len(names) > 0 && abbreviates(config.GetImage().GetImage(), st.ImageID) {
			named = names[0]
		}
	}
	if named != "" {
		out.Image = &runtimeapi.ImageSpec{Image: named, Annotations: config.GetImage().GetAnnotations()}
	}
	if u := st.User; u != nil {
		linux := &runtimeapi.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
		for _, g := range u.AdditionalGids {
			linux.SupplementalGroups = append(linux.SupplementalGroups, int64(g))
		}
		out.User = &runtimeapi.ContainerUser{Linux: linux}
	}
	if st.Finished {
		out.FinishedAt, out.ExitCode = nanoseconds(st.Exit.At), int32(st.Exit.Code)
	}
	return out
}

// abbreviates reports whether an image's name is its ID or the beginning of it.
func abbreviates(name, id string) bool {
	const algorithm = "sha256:"
	return strings.HasPrefix(strings.TrimPrefix(id, algorithm), strings.TrimPrefix(name, algorithm))
}

// limits returns a container's limits. If no limit of swap was requested, it is that of memory.
func (v *view) limits(st container.Status) *runtimeapi.LinuxContainerResources {
	r := st.Resources()
	if r.GetMemoryLimitInBytes() > 0 && r.GetMemorySwapLimitInBytes() == 0 && v.Host.Cgroup.Swap {
		r = proto.CloneOf(r)
		r.MemorySwapLimitInBytes = r.GetMemoryLimitInBytes()
	}
	return r
}

// UpdateContainerResources changes the limits of a created or running container.
func (c containers) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	st, err := c.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if req.GetLinux() == nil {
		return nil, invalid("container %q: linux resources are missing", st.Name())
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, c.Containers.Update(ctx, st.ID, req.GetLinux())
}

// CheckpointContainer writes a checkpoint of a container, which keeps running.
func (c containers) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	st, err := c.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	timeout := time.Duration(min(max(req.GetTimeout(), 0), int64(maxGrace/time.Second))) * time.Second
	return &runtimeapi.CheckpointContainerResponse{}, precondition(c.Containers.Checkpoint(ctx, st.ID, req.GetLocation(), timeout))
}

// ReopenContainerLog reopens a running container's log file after rotation.
func (c containers) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	st, err := c.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, c.Containers.ReopenLog(ctx, st.ID)
}

// GetContainerEvents sends events until the client disconnects. A client that reads too slowly gets
// an error and must list again.
func (c containers) GetContainerEvents(_ *runtimeapi.GetEventsRequest, to grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	l, unsubscribe := c.Events.subscribe()
	defer unsubscribe()
	// The header tells the client that from now on it misses nothing.
	if err := to.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	return l.each(to.Context(), func(e event) error {
		r := &runtimeapi.ContainerEventResponse{ContainerId: e.id, ContainerEventType: e.kind, CreatedAt: e.at.UnixNano()}
		if st, err := c.Sandboxes.Get(e.sandbox); err == nil {
			r.PodSandboxStatus, r.ContainersStatuses = sandboxStatus(st), c.containersOf(st.ID)
		}
		return to.Send(r)
	})
}
