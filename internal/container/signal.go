package container

import (
	"strings"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
)

// criSignal turns CRI's spelling into everybody else's: SIGNAL_SIGRTMINPLUS3.
var criSignal = strings.NewReplacer("SIGNAL_", "", "PLUS", "+", "MINUS", "-")

// stopSignal is the signal that asks a container to end: what its config says,
// else what its image says, else SIGTERM.
func stopSignal(config *runtimeapi.ContainerConfig, image string) syscall.Signal {
	if s := config.GetStopSignal(); s != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		image = criSignal.Replace(s.String())
	}
	if sig, err := oci.ParseSignal(image); err == nil {
		return sig
	}
	return syscall.SIGTERM
}
