package cri

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// pods implements the methods about pod sandboxes.
type pods struct{ *view }

// podKey has what can change of a sandbox in a list. The configuration is replaced as a whole, if
// at all.
type podKey struct {
	config  *runtimeapi.PodSandboxConfig
	state   runtimeapi.PodSandboxState
	handler string
}

// RunPodSandbox creates and starts a sandbox. A concurrent call for the same sandbox waits for the
// first.
func (p pods) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if req.GetConfig() == nil {
		return nil, invalid("sandbox config is missing")
	}
	st, err := p.Sandboxes.Run(ctx, req.GetConfig(), req.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: st.ID}, nil
}

// StopPodSandbox stops a sandbox and its containers. It succeeds if there is no such sandbox.
func (p pods) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	st, err := p.sandbox(req.GetPodSandboxId())
	if err == nil {
		err = p.Sandboxes.Stop(ctx, st.ID)
	}
	return &runtimeapi.StopPodSandboxResponse{}, ignoreNotFound(err)
}

// RemovePodSandbox removes a sandbox and its containers. It succeeds if there is no such sandbox.
func (p pods) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	st, err := p.sandbox(req.GetPodSandboxId())
	if err == nil {
		err = p.Sandboxes.Remove(ctx, st.ID)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, ignoreNotFound(err)
}

// PodSandboxStatus returns the status of a sandbox and its containers.
func (p pods) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	st, err := p.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	r := &runtimeapi.PodSandboxStatusResponse{Status: sandboxStatus(st), ContainersStatuses: p.containersOf(st.ID), Timestamp: time.Now().UnixNano()}
	if req.GetVerbose() {
		r.Info, err = p.sandboxInfo(st)
	}
	return r, err
}

// containersOf returns the statuses of a sandbox's containers.
func (v *view) containersOf(id string) []*runtimeapi.ContainerStatus {
	var list []*runtimeapi.ContainerStatus
	for _, c := range v.Containers.List(id) {
		if created(c) {
			list = append(list, v.containerStatus(c))
		}
	}
	return list
}

func sandboxStatus(st sandbox.Status) *runtimeapi.PodSandboxStatus {
	c := st.Config
	out := &runtimeapi.PodSandboxStatus{
		Id: st.ID, Metadata: c.GetMetadata(), State: sandboxState(st), CreatedAt: st.Created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: namespaces(c),
		}},
		Labels: c.GetLabels(), Annotations: c.GetAnnotations(), RuntimeHandler: st.Handler,
	}
	for _, prefix := range st.Addresses() {
		if ip := prefix.Addr().String(); out.Network.Ip == "" {
			out.Network.Ip = ip
		} else {
			out.Network.AdditionalIps = append(out.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	return out
}

// namespaces returns the pod's namespace options, which are never nil.
func namespaces(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	if options := c.GetLinux().GetSecurityContext().GetNamespaceOptions(); options != nil {
		return options
	}
	return &runtimeapi.NamespaceOption{}
}

// sandboxState returns whether a sandbox is ready. One that must be replaced isn't, so that the
// client does that.
func sandboxState(st sandbox.Status) runtimeapi.PodSandboxState {
	if st.State == sandboxstate.Ready && !st.Displaced.Replace {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// ListPodSandbox lists sandboxes, newest first.
func (p pods) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	list, err := p.list(req.GetFilter())
	if err != nil {
		return nil, err
	}
	r := &runtimeapi.ListPodSandboxResponse{}
	return r, p.podList.put(r, len(list), unfiltered(req.GetFilter()), func(i int) (string, podKey, func() proto.Message) {
		st := &list[i]
		return st.ID, podKey{st.Config, sandboxState(*st), st.Handler}, func() proto.Message { return listedSandbox(st) }
	})
}

// StreamPodSandboxes is ListPodSandbox for lists of any length.
func (p pods) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	list, err := p.list(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(part []sandbox.Status) error {
		r := &runtimeapi.StreamPodSandboxesResponse{}
		for i := range part {
			r.PodSandboxes = append(r.PodSandboxes, listedSandbox(&part[i]))
		}
		return to.Send(r)
	})
}

func (p pods) list(filter *runtimeapi.PodSandboxFilter) ([]sandbox.Status, error) {
	state := filter.GetState()
	return p.sandboxes(filter.GetId(), filter.GetLabelSelector(), func(st *sandbox.Status) bool {
		return state == nil || sandboxState(*st) == state.GetState()
	})
}

// listedSandbox returns a sandbox as it appears in lists.
func listedSandbox(st *sandbox.Status) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id: st.ID, Metadata: st.Config.GetMetadata(), State: sandboxState(*st), CreatedAt: st.Created.UnixNano(),
		Labels: st.Config.GetLabels(), Annotations: st.Config.GetAnnotations(), RuntimeHandler: st.Handler,
	}
}

// sandboxes returns the sandboxes with the ID and the labels for which keep returns true. An empty
// ID matches any.
func (v *view) sandboxes(id string, labels map[string]string, keep func(*sandbox.Status) bool) ([]sandbox.Status, error) {
	matches := func(st *sandbox.Status) bool {
		return started(*st) && selected(st.Config.GetLabels(), labels, id != "") && keep(st)
	}
	if id == "" {
		return v.Sandboxes.Select(matches), nil
	}
	st, err := v.sandbox(id)
	if err != nil || !matches(&st) {
		return nil, ignoreNotFound(err)
	}
	return []sandbox.Status{st}, nil
}

// started reports whether the sandbox's start has finished: before that, no client has its ID, and
// a list would show it as not ready.
func started(st sandbox.Status) bool {
	switch st.State {
	case sandboxstate.Reserved, sandboxstate.Pinning, sandboxstate.Attaching, sandboxstate.Starting:
		return false
	}
	return true
}

// UpdatePodSandboxResources changes the limits of a pod as a whole.
func (p pods) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	st, err := p.sandbox(req.GetPodSandboxId())
	if err == nil {
		err = p.Sandboxes.Update(ctx, st.ID, req.GetResources(), req.GetOverhead())
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, err
}
