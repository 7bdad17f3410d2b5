package sandbox

import (
	"context"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/infra"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// needsInfra reports whether the sandbox needs a process of its own. There are three reasons: the
// pod's containers share a PID namespace, whose first process has to outlive each of them; the
// network has to find the sandbox running; or the runtime creates its own sandbox along with the
// pod's first container.
func (e *entry) needsInfra() bool {
	return e.Rec.RuntimeSandbox || e.options().GetPid() == runtimeapi.NamespaceMode_POD || e.Rec.Order == sandboxstate.AfterStart
}

// infraDir returns the directory of the infra process's files in that of a sandbox.
func infraDir(dir string) string { return filepath.Join(dir, "infra") }

// startInfra starts the infra process, if one is needed.
func (e *entry) startInfra(ctx context.Context) error {
	if !e.needsInfra() {
		return nil
	}
	if e.stopWarming != nil {
		defer e.stopWarming()
	}
	f := e.files()
	process, err := e.s.cfg.Infra.Start(ctx, infra.Request{
		ID: e.ID, Dir: infraDir(e.dir()), Sandbox: e.Config, Hostname: e.hostname(),
		Handler: e.Rec.Handler, RuntimeSandbox: e.Rec.RuntimeSandbox,
		IDs:        idsOf(e.Config),
		Namespaces: spec.Namespaces{Net: f.Net, IPC: f.IPC, UTS: f.UTS, User: f.User},
		Labels:     e.Rec.Labels,
		Cgroup:     pod.ContainerCgroup(e.s.Cgroup(e.Status()), e.ID),
	})
	if err != nil {
		return err
	}
	e.Rec.Infra = &process
	return nil
}

// removeInfra ends the infra process, if there is one.
func (e *entry) removeInfra(ctx context.Context) error {
	if !e.needsInfra() {
		return nil
	}
	var process oci.Process
	if e.Rec.Infra != nil {
		process = *e.Rec.Infra
	}
	return e.s.cfg.Infra.Remove(ctx, e.ID, infraDir(e.dir()), process)
}
