package container

import (
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestStopSignal(t *testing.T) {
	for image, want := range map[string]syscall.Signal{
		"":             syscall.SIGTERM,
		"SIGQUIT":      syscall.SIGQUIT,
		"quit":         syscall.SIGQUIT,
		"3":            syscall.SIGQUIT,
		"SIGRTMIN+3":   37,
		"RTMAX-1":      63,
		"SIGRTMIN":     34,
		"SIGRTMIN+99":  syscall.SIGTERM,
		"RTMIN+x":      syscall.SIGTERM,
		"0":            syscall.SIGTERM,
		"65":           syscall.SIGTERM,
		"-9":           syscall.SIGTERM,
		"SIGNONSENSE":  syscall.SIGTERM,
		"SIGQUIT\x00x": syscall.SIGTERM,
	} {
		if got := stopSignal(&runtimeapi.ContainerConfig{}, image); got != want {
			t.Errorf("image with %q: %d, want %d", image, got, want)
		}
	}
	for n, name := range runtimeapi.Signal_name {
		got := stopSignal(&runtimeapi.ContainerConfig{StopSignal: runtimeapi.Signal(n)}, "SIGUSR1")
		switch {
		case n == 0 && got != syscall.SIGUSR1:
			t.Errorf("default: %d, want the image's", got)
		case n != 0 && got == syscall.SIGUSR1 && name != "SIGNAL_SIGUSR1":
			t.Errorf("%s is unknown", name)
		}
	}
	if got := stopSignal(&runtimeapi.ContainerConfig{StopSignal: runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3}, ""); got != 37 {
		t.Errorf("SIGRTMIN+3 is %d", got)
	}
}
