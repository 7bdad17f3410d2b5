package cri

import (
	"encoding/json"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

// sandboxInfo is what crictl inspectp shows beside the status. Its keys are
// those that tools read from containerd's, and iSulad's networkSettings.
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
}

func (v *view) sandboxInfo(st sandbox.Status) (map[string]string, error) {
	info := sandboxInfo{
		SandboxKey: st.Attachment.Netns, NetworkSettings: pod.NewNetworkSettings(st.Attachment, st.Attached), Attached: st.Attached,
		RuntimeHandler: st.Handler, RuntimeType: v.handler(st.Handler).Runtime, State: string(st.State), Reason: st.Reason,
		Cgroup: v.Sandboxes.Cgroup(st), Steps: st.Steps, Config: st.Config,
	}
	if st.Infra != nil {
		info.PID = st.Infra.PID
	}
	return document(info)
}

// containerInfo is what crictl inspect shows beside the status.
type containerInfo struct {
	SandboxID   string                      `json:"sandboxID"`
	PID         int                         `json:"pid"` // of its first process; 0 once it has ended
	State       string                      `json:"state"`
	SnapshotKey string                      `json:"snapshotKey"`
	Snapshotter string                      `json:"snapshotter"`
	RuntimeType string                      `json:"runtimeType"`
	Steps       []pod.Step                  `json:"steps,omitempty"`
	Config      *runtimeapi.ContainerConfig `json:"config"`
	RuntimeSpec json.RawMessage             `json:"runtimeSpec,omitempty"`
}

func (v *view) containerInfo(st container.Status) (map[string]string, error) {
	info := containerInfo{
		SandboxID: st.Sandbox, State: string(st.State), SnapshotKey: v.Containers.Layer(st.ID), Snapshotter: "overlayfs",
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
