package cri

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/version"
)

// node is about the runtime as a whole.
type node struct{ *view }

// The versions that kubelet and crictl ask for: kubelet's own API version, of
// which there was never another, and CRI's.
const (
	kubeletAPIVersion = "0.1.0"
	criVersion        = "v1"
	runtimeName       = "husk"
)

// Version says which runtime this is.
func (n node) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: kubeletAPIVersion, RuntimeName: runtimeName, RuntimeVersion: version.Version, RuntimeApiVersion: criVersion,
	}, nil
}

// Status says whether containers and pods could be started now.
func (n node) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	r := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			condition(runtimeapi.RuntimeReady, "NoRuntime", n.Runtime.Missing),
			condition(runtimeapi.NetworkReady, "NetworkPluginNotReady", n.NetworkReady(ctx)),
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	for _, name := range n.handlers() {
		r.RuntimeHandlers = append(r.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: name, Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: n.Host.RecursiveReadOnly,
		}})
	}
	if !req.GetVerbose() {
		return r, nil
	}
	info, err := json.Marshal(map[string]any{
		// Tools look for the directory of state under this name.
		"stateDir": n.State, "rootDir": n.Root, "runtime": n.Runtime.Name, "runtimeVersion": n.Runtime.Version,
		"podSubnets": n.Subnets, "host": n.Host,
	})
	r.Info = map[string]string{"config": string(info), "golang": version.Go()}
	return r, err
}

func condition(kind, reason string, err error) *runtimeapi.RuntimeCondition {
	c := &runtimeapi.RuntimeCondition{Type: kind, Status: err == nil}
	if err != nil {
		c.Reason, c.Message = reason, err.Error()
	}
	return c
}

// handlers are the names of runtime handlers, the default one first.
func (v *view) handlers() []string {
	if v.Runtime.Name == "" {
		return []string{""}
	}
	return []string{"", v.Runtime.Name}
}

// checkHandler refuses a handler that there isn't.
func (v *view) checkHandler(name string) error {
	if known := v.handlers(); !slices.Contains(known, name) {
		return invalid("runtime handler %.80q is not known here: use %s, or none for the default", name, strings.Join(known[1:], ", "))
	}
	return nil
}

// RuntimeConfig says which cgroup driver the kubelet must use.
func (n node) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig takes the addresses that the cluster has for the node's
// pods. They are huskd's own to configure, so all there is to do is to refuse
// what is none.
func (n node) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	if cidrs := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr(); cidrs != "" {
		for cidr := range strings.SplitSeq(cidrs, ",") {
			if _, err := netip.ParsePrefix(strings.TrimSpace(cidr)); err != nil {
				return nil, invalid("pod_cidr %.80q is not a prefix such as 10.201.0.0/24", cidr)
			}
		}
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// errNoCheckpoint is what checkpoints need and isn't there.
var errNoCheckpoint = errdefs.ErrNotImplemented.WithMessage("checkpoints are not made: no OCI runtime with CRIU is set up; stop the container instead")

// CheckpointContainer is refused.
func (n node) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return nil, errNoCheckpoint
}

// CheckpointPod is refused.
func (n node) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return nil, errNoCheckpoint
}

// RestorePod is refused.
func (n node) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, errNoCheckpoint
}
