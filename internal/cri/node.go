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

// node implements the methods about the runtime as a whole.
type node struct{ *view }

// The versions that kubelet and crictl ask for: the kubelet's own API version, which has never
// changed, and CRI's.
const (
	kubeletAPIVersion = "0.1.0"
	criVersion        = "v1"
	runtimeName       = "husk"
)

// Version returns the name and the version of the runtime.
func (n node) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: kubeletAPIVersion, RuntimeName: runtimeName, RuntimeVersion: semantic(version.Version), RuntimeApiVersion: criVersion,
	}, nil
}

// semantic returns the version of a build in a form that the kubelet can parse. A version without
// numbers, such as a commit, would be shown as "Unknown".
func semantic(version string) string {
	if numbered.MatchString(version) {
		return version
	}
	return "0.0.0+" + version
}

var numbered = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+`)

// Status reports whether containers and pods can be started now.
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
		// Tools look for the state directory by this name.
		"stateDir": n.State, "rootDir": n.Root, "runtimes": runtimes,
		"podSubnets": n.Subnets, "host": n.Host,
	})
	r.Info = map[string]string{"config": string(info), "golang": version.Go()}
	return r, errors.Join(err, n.Networks().addTo(r.Info))
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

// handler returns the handler of that name. If there is none, because the pod is older than the
// configuration, it returns the default.
func (v *view) handler(name string) oci.Handler {
	for _, h := range v.Handlers {
		if h.Name == name {
			return h
		}
	}
	return v.Handlers[0]
}

// RuntimeConfig returns the cgroup driver that the kubelet must use.
func (n node) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if n.Systemd {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig passes the addresses that the cluster assigns to the node's pods on to CNI
// plugins. Those of the built-in network are in huskd's configuration.
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

// No runtime supports checkpoints of whole pods yet.
var errNoCheckpoint = errdefs.ErrNotImplemented.WithMessage("pods can't be checkpointed: checkpoint each container")

// CheckpointPod isn't supported.
func (n node) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return nil, errNoCheckpoint
}

// RestorePod isn't supported.
func (n node) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, errNoCheckpoint
}
