package container

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
)

// criSignal turns CRI's spelling of signals, such as SIGNAL_SIGRTMINPLUS3, into the usual one.
var criSignal = strings.NewReplacer("SIGNAL_", "", "PLUS", "+", "MINUS", "-")

// stopSignal returns the signal that asks a container to end: that of its config, or else that of
// its image, or else SIGTERM.
func stopSignal(config *runtimeapi.ContainerConfig, image string) syscall.Signal {
	if s := config.GetStopSignal(); s != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		image = criSignal.Replace(s.String())
	}
	if sig, err := oci.ParseSignal(image); err == nil {
		return sig
	}
	return syscall.SIGTERM
}

// criSignalOf returns a signal as CRI spells it.
func criSignalOf(sig syscall.Signal) runtimeapi.Signal {
	name := unix.SignalName(sig)
	switch {
	case sig >= realTimeMin && sig < realTimeMin+16:
		name = fmt.Sprintf("SIGRTMINPLUS%d", sig-realTimeMin)
	case sig >= realTimeMin && sig <= realTimeMax:
		name = fmt.Sprintf("SIGRTMAXMINUS%d", realTimeMax-sig)
	}
	name = strings.TrimSuffix(strings.TrimSuffix(name, "PLUS0"), "MINUS0")
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+name])
}

// The C library's first and last real-time signals.
const (
	realTimeMin = 34
	realTimeMax = 64
)
