package resourceclass

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

const config = `
Classes:
  slow:
    - Weight: 80
  fast:
    - Weight: 800
`

func TestBlockIO(t *testing.T) {
	file := filepath.Join(t.TempDir(), "blockio.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(Config{BlockIO: file})
	if err != nil {
		t.Fatal(err)
	}
	of := func(class string) map[string]string {
		return map[string]string{"io.kubernetes.cri.blockio-class": class}
	}
	for _, test := range []struct {
		own, pod map[string]string
		want     uint16
	}{
		{nil, nil, 0},
		{of("slow"), nil, 80},
		{of("fast"), map[string]string{"blockio.resources.beta.kubernetes.io/pod": "slow"}, 800},
		{nil, map[string]string{"blockio.resources.beta.kubernetes.io/pod": "slow"}, 80},
		{nil, map[string]string{"blockio.resources.beta.kubernetes.io/pod": "slow", "blockio.resources.beta.kubernetes.io/container.web": "fast"}, 800},
	} {
		io, cache, err := c.Limits("web", test.own, test.pod)
		if err != nil || cache != nil || (io == nil) != (test.want == 0) || io != nil && *io.Weight != test.want {
			t.Errorf("limits by annotations %v and the pod's %v: %+v, %v; want weight %d", test.own, test.pod, io, err, test.want)
		}
	}
	if _, _, err := c.Limits("web", of("none"), nil); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "none") {
		t.Errorf("an unknown class: %v, want an invalid argument", err)
	}
}

func TestNotConfigured(t *testing.T) {
	c, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	io, cache, err := c.Limits("web", map[string]string{"io.kubernetes.cri.blockio-class": "x", "io.kubernetes.cri.rdt-class": "y"}, nil)
	if io != nil || cache != nil || err != nil {
		t.Errorf("limits without files: %v, %v, %v", io, cache, err)
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x")
	if err := os.WriteFile(file, []byte("Classes: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{{BlockIO: file}, {BlockIO: filepath.Join(dir, "none")}, {RDT: filepath.Join(dir, "none")}} {
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "-config: ") {
			t.Errorf("Open(%+v): %v, want an error that names the setting", cfg, err)
		}
	}
}
