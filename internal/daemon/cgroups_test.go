package daemon

import (
	"testing"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
)

func TestParents(t *testing.T) {
	const slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice"
	for _, test := range []struct {
		driven      bool
		named, want string
	}{
		{false, "/kubepods/burstable/podX", "/kubepods/burstable/podX"},
		{true, "/kubepods/burstable/podX", "/kubepods/burstable/podX"},
		{true, slice, slice}, // as the kubelet says it
		{true, "kubepods-burstable-podX.slice", slice},
		{true, "/elsewhere/kubepods-burstable-podX.slice", slice}, // its place follows from its name
		{false, slice, slice},                                     // a directory like others
		{false, "kubepods.slice", ""},
		{true, "kubepods--x.slice", ""},
		{true, "relative", ""},
	} {
		got, err := parents(test.driven)(test.named)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
}

func TestTheSystemdDriverNeedsSystemd(t *testing.T) {
	cfg := config.New()
	if err := checkDriver(cfg, host.Facts{}); err != nil {
		t.Error(err)
	}
	cfg.CgroupDriver = "systemd"
	if err := checkDriver(cfg, host.Facts{}); err == nil {
		t.Error("it is taken without systemd")
	}
	if err := checkDriver(cfg, host.Facts{Systemd: true}); err != nil {
		t.Error(err)
	}
}
