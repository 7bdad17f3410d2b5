package cri

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
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
		Version: kubeletAPIVersion, RuntimeName: runtimeName, RuntimeVersion: semantic(version.Version), RuntimeApiVersion: criVersion,
	}, nil
}

// semantic is the version of a build in a form that kubelet reads: one without
// numbers, such as a commit's, it would show as "Unknown".
func semantic(version string) string {
	if numbered.MatchString(version) {
		return version
	}
	return "0.0.0+" + version
}

var numbered = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+`)

// Status says whether containers and pods could be started now.
func (n node) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	r := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			condition(runtimeapi.RuntimeReady, "NoRuntime", n.handler("").Missing),
			condition(runtimeapi.NetworkReady, "NetworkPluginNotReady", n.NetworkReady(ctx)),
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	runtimes := map[string]handlerInfo{}
	for _, h := range n.Handlers {
		runtimes[h.Name] = infoOf(h)
		if h.Missing != nil && h.Name != "" {
			continue
		}
		r.RuntimeHandlers = append(r.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: h.Name, Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: n.Host.RecursiveReadOnly, UserNamespaces: h.UserNamespaces,
		}})
	}
	if !req.GetVerbose() {
		return r, nil
	}
	info, err := json.Marshal(map[string]any{
		// Tools look for the directory of state under this name.
		"stateDir": n.State, "rootDir": n.Root, "runtimes": runtimes,
		"podSubnets": n.Subnets, "host": n.Host,
	})
	r.Info = map[string]string{"config": string(info), "golang": version.Go()}
	return r, errors.Join(err, n.Networks().inform(r.Info))
}

// handlerInfo is what crictl info shows of a runtime handler.
type handlerInfo struct {
	Runtime        string `json:"runtime,omitempty"`
	Version        string `json:"version,omitempty"`
	Path           string `json:"path,omitempty"`
	UserNamespaces bool   `json:"userNamespaces"`
	Missing        string `json:"missing,omitempty"` // why it can't be used
}

func infoOf(h oci.Handler) handlerInfo {
	info := handlerInfo{Runtime: h.Runtime, Version: h.Version, Path: h.Path, UserNamespaces: h.UserNamespaces}
	if h.Missing != nil {
		info.Missing = h.Missing.Error()
	}
	return info
}

func condition(kind, reason string, err error) *runtimeapi.RuntimeCondition {
	c := &runtimeapi.RuntimeCondition{Type: kind, Status: err == nil}
	if err != nil {
		c.Reason, c.Message = reason, err.Error()
	}
	return c
}

// handler returns the one of that name, or the default if there is none, as
// it may be for a pod of before.
func (v *view) handler(name string) oci.Handler {
	for _, h := range v.Handlers {
		if h.Name == name {
			return h
		}
	}
	return v.Handlers[0]
}

// RuntimeConfig says which cgroup driver the kubelet must use.
func (n node) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if n.Systemd {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig takes the addresses that the cluster has for the node's
// pods, for plugins that can be told. Those of the built-in network are huskd's
// own to configure.
func (n node) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	cidrs := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if cidrs == "" {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	var ranges []netip.Prefix
	for cidr := range strings.SplitSeq(cidrs, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(cidr))
		if err != nil {
			return nil, invalid("pod_cidr %.80q is not a prefix such as 10.201.0.0/24", cidr)
		}
		ranges = append(ranges, p.Masked())
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, n.SetRanges(ranges)
}

// errNoCheckpoint: of pods there are none, neither here nor elsewhere yet.
var errNoCheckpoint = errdefs.ErrNotImplemented.WithMessage("checkpoints of whole pods are not made: checkpoint each container")

// CheckpointPod is refused.
func (n node) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return nil, errNoCheckpoint
}

// RestorePod is refused.
func (n node) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, errNoCheckpoint
}
