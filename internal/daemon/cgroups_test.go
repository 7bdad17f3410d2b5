package daemon

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
)

func TestCgroupParent(t *testing.T) {
	const slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice"
	for _, test := range []struct {
		systemd     bool
		named, want string
	}{
		{false, "/kubepods/burstable/podX", "/kubepods/burstable/podX"},
		{true, "/kubepods/burstable/podX", "/kubepods/burstable/podX"},
		{true, slice, slice}, // as the kubelet writes it
		{true, "kubepods-burstable-podX.slice", slice},
		{true, "/elsewhere/kubepods-burstable-podX.slice", slice}, // its path follows from its name
		{false, slice, slice},                                     // an ordinary directory
		{false, "kubepods.slice", ""},
		{true, "kubepods--x.slice", ""},
		{true, "relative", "/relative"},
		{false, "pods/relative", "/pods/relative"},
	} {
		got, err := podCgroups{systemd: test.systemd}.Parent(test.named)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
}

func TestSystemdDriverNeedsSystemd(t *testing.T) {
	cfg := config.New()
	if err := checkDriver(&cfg, host.Facts{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	cfg.CgroupDriver = "systemd"
	if err := checkDriver(&cfg, host.Facts{}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("the systemd driver is accepted without systemd")
	}
	if err := checkDriver(&cfg, host.Facts{Systemd: true}, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}

	// A kubelet's configuration asks for it, as that of kubeadm does.
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse([]string{"--config=/dev/null", "--kubelet-config=" + path}, io.Discard)
	if err != nil || cfg.CgroupDriver != "systemd" {
		t.Fatalf("%q, %v", cfg.CgroupDriver, err)
	}
	if err := checkDriver(&cfg, host.Facts{}, slog.New(slog.DiscardHandler)); err != nil || cfg.CgroupDriver != config.Cgroupfs {
		t.Errorf("the driver of a kubelet's configuration: %q, %v", cfg.CgroupDriver, err)
	}
}
