package cri

import (
	"encoding/json"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

// sandboxInfo is what crictl inspectp shows beside the status. Its keys are containerd's, for tools
// that read those, and iSulad's networkSettings.
type sandboxInfo struct {
	PID             int                          `json:"pid"` // of the infra process; 0 without one
	SandboxKey      string                       `json:"sandboxKey"`
	NetworkSettings pod.NetworkSettings          `json:"networkSettings"`
	Attached        []pod.Attached               `json:"attached"`
	RuntimeHandler  string                       `json:"runtimeHandler"`
	RuntimeType     string                       `json:"runtimeType"`
	State           string                       `json:"state"`
	Reason          string                       `json:"reason,omitempty"`
	Cgroup          string                       `json:"cgroup"`
	Steps           []pod.Step                   `json:"steps,omitempty"`
	Config          *runtimeapi.PodSandboxConfig `json:"config"`
	ProcessStatus   string                       `json:"processStatus"`
	NetnsClosed     bool                         `json:"netNamespaceClosed"`
	CNIResult       cniResult                    `json:"cniResult"`
	RuntimeSpec     *specs.Spec                  `json:"runtimeSpec"`
}

func (v *view) sandboxInfo(st sandbox.Status) (map[string]string, error) {
	info := sandboxInfo{
		ProcessStatus: "deleted", NetnsClosed: st.State.Down(), CNIResult: cniResultOf(st), RuntimeSpec: v.sandboxSpec(st),
		SandboxKey: st.Attachment.Netns, NetworkSettings: pod.NewNetworkSettings(st.Attachment, st.Attached), Attached: st.Attached,
		RuntimeHandler: st.Handler, RuntimeType: v.handler(st.Handler).Runtime, State: string(st.State), Reason: st.Reason,
		Cgroup: v.Sandboxes.Cgroup(st), Steps: st.Steps, Config: st.Config,
	}
	if st.Infra != nil {
		info.PID = st.Infra.PID
	}
	if sandboxState(st) == runtimeapi.PodSandboxState_SANDBOX_READY {
		info.ProcessStatus = "running"
	}
	return document(info)
}

// sandboxSpec describes what the sandbox's containers share, as the spec of a pause container does
// with other runtimes: tools look for the namespaces there.
func (v *view) sandboxSpec(st sandbox.Status) *specs.Spec {
	out := &specs.Spec{
		Version: specs.Version, Hostname: st.Config.GetHostname(), Annotations: spec.SandboxAnnotations(st.ID, st.Config),
		Linux: &specs.Linux{CgroupsPath: v.Sandboxes.Cgroup(st), Sysctl: st.Config.GetLinux().GetSysctls()},
	}
	files := v.Sandboxes.Files(st)
	for _, ns := range []specs.LinuxNamespace{
		{Type: specs.NetworkNamespace, Path: files.Net}, {Type: specs.IPCNamespace, Path: files.IPC},
		{Type: specs.UTSNamespace, Path: files.UTS}, {Type: specs.UserNamespace, Path: files.User},
	} {
		if ns.Path != "" {
			out.Linux.Namespaces = append(out.Linux.Namespaces, ns)
		}
	}
	return out
}

// cniResult is the result of the network in containerd's format.
type cniResult struct {
	Interfaces map[string]cniInterface
	DNS        []struct{}
	Routes     []struct{}
}

type cniInterface struct {
	IPConfigs    []cniAddress
	Mac, Sandbox string
}

type cniAddress struct{ IP, Gateway string }

func cniResultOf(st sandbox.Status) cniResult {
	out := cniResult{Interfaces: map[string]cniInterface{}}
	for _, a := range st.Attached {
		in := cniInterface{Mac: a.MAC, Sandbox: st.Attachment.Netns}
		for _, address := range a.Addresses {
			config := cniAddress{IP: address.Addr().String()}
			for _, gateway := range a.Gateways {
				if gateway.Is4() == address.Addr().Is4() {
					config.Gateway = gateway.String()
				}
			}
			in.IPConfigs = append(in.IPConfigs, config)
		}
		out.Interfaces[a.IfName] = in
	}
	return out
}

// containerInfo is what crictl inspect shows beside the status.
type containerInfo struct {
	SandboxID   string                      `json:"sandboxID"`
	PID         int                         `json:"pid"` // of its first process; 0 once it has ended
	State       string                      `json:"state"`
	Removing    bool                        `json:"removing"`
	SnapshotKey string                      `json:"snapshotKey"`
	Snapshotter string                      `json:"snapshotter"`
	RuntimeType string                      `json:"runtimeType"`
	Steps       []pod.Step                  `json:"steps,omitempty"`
	Config      *runtimeapi.ContainerConfig `json:"config"`
	RuntimeSpec json.RawMessage             `json:"runtimeSpec,omitempty"`
}

func (v *view) containerInfo(st container.Status) (map[string]string, error) {
	info := containerInfo{
		SandboxID: st.Sandbox, State: string(st.State), Removing: st.State == containerstate.Removing, SnapshotKey: v.Containers.Layer(st.ID), Snapshotter: "overlayfs",
		RuntimeType: v.handler(st.Handler).Runtime, Steps: st.Steps, Config: st.Config, RuntimeSpec: v.Containers.Spec(st.ID),
	}
	if !st.Finished {
		info.PID = st.Process.PID
	}
	return document(info)
}

func document(info any) (map[string]string, error) {
	text, err := json.Marshal(info)
	return map[string]string{"info": string(text)}, err
}
