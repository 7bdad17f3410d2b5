package sandbox

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// needsInfra says whether the sandbox must have a process of its own: because
// the pod's containers share a PID namespace, of which it is the first and
// outlives each of them, because the network must find the sandbox running, or
// because it makes the sandbox that the runtime runs the pod's containers in.
func (b *box) needsInfra() bool {
	return b.rec.Boxed || b.options().GetPid() == runtimeapi.NamespaceMode_POD || b.rec.Order == sandboxstate.AfterStart
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
	// The runtime makes mount points in it, as root of the user namespace.
	uid, gid := ownerOf(b.config).Root()
	if err := os.Chown(rootfs, uid, gid); err != nil {
		return err
	}
	f := b.files()
	result, err := spec.Infra(spec.InfraRequest{
		SandboxID:   b.id,
		Sandbox:     b.config,
		Host:        b.s.cfg.Host,
		Rootfs:      rootfs,
		Args:        []string{"/pause"},
		Namespaces:  spec.Namespaces{Net: f.Net, IPC: f.IPC, UTS: f.UTS, User: f.User},
		Labels:      b.rec.Labels,
		CgroupsPath: pod.ContainerCgroup(b.s.Cgroup(b.status()), b.id),
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
	process, err := b.s.cfg.Runtime.Create(ctx, oci.Create{ID: b.id, Bundle: bundle, Handler: b.rec.Handler})
	if err != nil {
		return err
	}
	if err := b.s.cfg.Runtime.Start(ctx, b.id); err != nil {
		return err
	}
	b.rec.Infra = &process
	return nil
}
