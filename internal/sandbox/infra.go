package sandbox

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/pause"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// needsInfra reports whether the sandbox needs a process of its own. There are three reasons: the
// pod's containers share a PID namespace, whose first process has to outlive each of them; the
// network has to find the sandbox running; or the runtime creates its own sandbox along with the
// pod's first container.
func (e *entry) needsInfra() bool {
	return e.Rec.RuntimeSandbox || e.options().GetPid() == runtimeapi.NamespaceMode_POD || e.Rec.Order == sandboxstate.AfterStart
}

// startInfra starts the infra process, if one is needed.
func (e *entry) startInfra(ctx context.Context) error {
	if !e.needsInfra() {
		return nil
	}
	bundle := filepath.Join(e.dir(), "infra")
	rootfs := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		return err
	}
	if err := pause.Write(filepath.Join(rootfs, "pause")); err != nil {
		return err
	}
	// The runtime makes mount points in it as root of the user namespace.
	uid, gid := idsOf(e.Config).Root()
	if err := os.Chown(rootfs, uid, gid); err != nil {
		return err
	}
	f := e.files()
	result, err := spec.Infra(spec.InfraRequest{
		SandboxID:   e.ID,
		Sandbox:     e.Config,
		Host:        e.s.cfg.Host,
		Rootfs:      rootfs,
		Args:        []string{"/pause"},
		Namespaces:  spec.Namespaces{Net: f.Net, IPC: f.IPC, UTS: f.UTS, User: f.User},
		Labels:      e.Rec.Labels,
		CgroupsPath: pod.ContainerCgroup(e.s.Cgroup(e.Status()), e.ID),
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
	process, err := e.s.cfg.Runtime.Create(ctx, oci.Create{ID: e.ID, Bundle: bundle, Handler: e.Rec.Handler})
	if err != nil {
		return err
	}
	if err := e.s.cfg.Runtime.Start(ctx, e.ID); err != nil {
		return err
	}
	e.Rec.Infra = &process
	return nil
}
