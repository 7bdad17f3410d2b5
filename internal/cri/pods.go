package cri

import (
	"context"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// pods are the calls about pod sandboxes.
type pods struct{ *view }

// RunPodSandbox makes a sandbox, or joins who is making the same one.
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

// StopPodSandbox ends everything in a sandbox. One that isn't there is stopped.
func (p pods) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	st, err := p.sandbox(req.GetPodSandboxId())
	if err == nil {
		err = p.Sandboxes.Stop(ctx, st.ID)
	}
	return &runtimeapi.StopPodSandboxResponse{}, gone(err)
}

// RemovePodSandbox removes a sandbox with its containers.
func (p pods) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	st, err := p.sandbox(req.GetPodSandboxId())
	if err == nil {
		err = p.Sandboxes.Remove(ctx, st.ID)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, gone(err)
}

// PodSandboxStatus tells how a sandbox and its containers are.
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

// containersOf are the statuses of a sandbox's containers.
func (v *view) containersOf(id string) []*runtimeapi.ContainerStatus {
	var list []*runtimeapi.ContainerStatus
	for _, c := range v.Containers.List(id) {
		if announced(c) {
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

// namespaces says what a pod shares, also if it says nothing.
func namespaces(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	if options := c.GetLinux().GetSecurityContext().GetNamespaceOptions(); options != nil {
		return options
	}
	return &runtimeapi.NamespaceOption{}
}

func sandboxState(st sandbox.Status) runtimeapi.PodSandboxState {
	if st.State == sandboxstate.Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// ListPodSandbox lists sandboxes, newest first.
func (p pods) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	list, err := p.list(req.GetFilter())
	return &runtimeapi.ListPodSandboxResponse{Items: list}, err
}

// StreamPodSandboxes is ListPodSandbox for lists of any length.
func (p pods) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	list, err := p.list(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(part []*runtimeapi.PodSandbox) error {
		return to.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: part})
	})
}

func (p pods) list(filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	candidates, err := p.sandboxes(filter.GetId(), filter.GetLabelSelector())
	if err != nil {
		return nil, err
	}
	var out []*runtimeapi.PodSandbox
	for _, st := range candidates {
		if filter.GetState() != nil && filter.GetState().GetState() != sandboxState(st) {
			continue
		}
		out = append(out, &runtimeapi.PodSandbox{
			Id: st.ID, Metadata: st.Config.GetMetadata(), State: sandboxState(st), CreatedAt: st.Created.UnixNano(),
			Labels: st.Config.GetLabels(), Annotations: st.Config.GetAnnotations(), RuntimeHandler: st.Handler,
		})
	}
	return out, nil
}

// sandboxes are those with the ID, if there is one, and the labels.
func (v *view) sandboxes(id string, labels map[string]string) ([]sandbox.Status, error) {
	all := v.Sandboxes.List()
	if id != "" {
		st, err := v.sandbox(id)
		if err != nil {
			return nil, gone(err)
		}
		all = []sandbox.Status{st}
	}
	var out []sandbox.Status
	for _, st := range all {
		if settled(st) && selected(st.Config.GetLabels(), labels, id != "") {
			out = append(out, st)
		}
	}
	return out, nil
}

// settled says whether somebody was told of the sandbox: before that a list
// would show as dead what is not yet born.
func settled(st sandbox.Status) bool {
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
