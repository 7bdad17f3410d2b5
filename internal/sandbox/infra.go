package sandbox

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
)

// needsInfra says whether the pod's containers share a PID namespace of their
// own: it must then have a first process, which outlives each of them.
func (b *box) needsInfra() bool {
	return b.options().GetPid() == runtimeapi.NamespaceMode_POD
}

// startInfra starts the infra process if one is needed.
func (b *box) startInfra(ctx context.Context) error {
	if !b.needsInfra() {
		return nil
	}
	bundle := filepath.Join(b.dir(), "infra")
	rootfs := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		return err
	}
	if err := b.s.cfg.WritePause(filepath.Join(rootfs, "pause")); err != nil {
		return err
	}
	f := b.files()
	result, err := spec.Infra(spec.InfraRequest{
		SandboxID:   b.id,
		Sandbox:     b.config,
		Host:        b.s.cfg.Host,
		Rootfs:      rootfs,
		Args:        []string{"/pause"},
		Namespaces:  spec.Namespaces{Net: f.Net, IPC: f.IPC, UTS: f.UTS},
		CgroupsPath: b.s.Cgroup(b.status()) + "/" + b.id,
	})
	if err != nil {
		return err
	}
	data, err := json.Marshal(result.Spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600); err != nil {
		return err
	}
	process, err := b.s.cfg.Runtime.Create(ctx, oci.Create{ID: b.id, Bundle: bundle})
	if err != nil {
		return err
	}
	if err := b.s.cfg.Runtime.Start(ctx, b.id); err != nil {
		return err
	}
	b.rec.Infra = &process
	return nil
}
