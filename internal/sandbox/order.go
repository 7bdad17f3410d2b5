package sandbox

import (
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// The annotations by which a pod chooses when it is attached to the network. The first overrides
// the second, and both override the runtime handler's order.
const (
	annotationNetwork = "cni.husk.dev/network"
	// iSulad's: true is before-start, false after-start.
	annotationISulad = "cri.sandbox.network.setup.v2"
)

// orderOf returns the order that the annotations ask for, or else that of the runtime handler.
func orderOf(config *runtimeapi.PodSandboxConfig, handler sandboxstate.Order) (sandboxstate.Order, error) {
	annotations := config.GetAnnotations()
	if v, ok := annotations[annotationNetwork]; ok {
		o := sandboxstate.Order(v)
		if o != sandboxstate.BeforeStart && o != sandboxstate.AfterStart {
			return "", bad("annotation %s: %.80q is neither %s nor %s", annotationNetwork, v, sandboxstate.BeforeStart, sandboxstate.AfterStart)
		}
		return o, nil
	}
	v, ok := annotations[annotationISulad]
	if !ok {
		return handler, nil
	}
	first, err := strconv.ParseBool(v)
	if err != nil {
		return "", bad("annotation %s: %.80q is neither true nor false", annotationISulad, v)
	}
	if first {
		return sandboxstate.BeforeStart, nil
	}
	return sandboxstate.AfterStart, nil
}
