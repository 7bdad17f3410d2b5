package nri

import (
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/nri/adjust"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// visible reports whether plugins that register at start see a sandbox.
func visible(st sandbox.Status) bool {
	return st.State == sandboxstate.Ready || st.State == sandboxstate.Stopped || st.State.Down() && st.State != sandboxstate.Removing && st.State != sandboxstate.Removed
}

// objects translates pods and containers into NRI's messages.
type objects struct {
	sandboxes  Sandboxes
	containers Containers
	log        *slog.Logger
}

// snapshot returns the pods and containers for a plugin that registers: those that other plugins
// know.
func (o *objects) snapshot(known *announcements) (pods []*api.PodSandbox, containers []*api.Container) {
	for _, st := range o.sandboxes.List() {
		if known, _ := known.lookup(st.ID); known {
			pods = append(pods, o.pod(st))
		}
	}
	for _, st := range o.containers.List("") {
		if known, stopped := known.lookup(st.ID); known && !stopped {
			containers = append(containers, o.container(st))
		}
	}
	return pods, containers
}

func (o *objects) pod(st sandbox.Status) *api.PodSandbox {
	config, files, ref := st.Config, o.sandboxes.Files(st), st.Ref()
	out := &api.PodSandbox{
		Id: st.ID, Name: ref.Name, Uid: ref.UID, Namespace: ref.Namespace,
		Labels: maps.Clone(config.GetLabels()), Annotations: maps.Clone(config.GetAnnotations()), RuntimeHandler: st.Handler,
		Linux: &api.LinuxPodSandbox{
			PodOverhead:  adjust.FromCRI(config.GetLinux().GetOverhead()),
			PodResources: adjust.FromCRI(config.GetLinux().GetResources()),
			CgroupParent: o.sandboxes.Cgroup(st),
		},
	}
	for _, prefix := range st.Addresses() {
		out.Ips = append(out.Ips, prefix.Addr().String())
	}
	for _, ns := range []struct {
		kind specs.LinuxNamespaceType
		path string
	}{{specs.NetworkNamespace, files.Net}, {specs.IPCNamespace, files.IPC}, {specs.UTSNamespace, files.UTS}, {specs.UserNamespace, files.User}} {
		if _, err := os.Stat(ns.path); err == nil {
			out.Linux.Namespaces = append(out.Linux.Namespaces, &api.LinuxNamespace{Type: string(ns.kind), Path: ns.path})
		}
	}
	if st.Infra != nil {
		out.Pid = uint32(st.Infra.PID)
		out.Linux.CgroupsPath = out.Linux.CgroupParent + "/" + st.ID
	}
	return out
}

// podOf returns the pod of a container.
func (o *objects) podOf(st container.Status) *api.PodSandbox {
	sandbox, err := o.sandboxes.Get(st.Sandbox)
	if err != nil {
		return &api.PodSandbox{Id: st.Sandbox}
	}
	return o.pod(sandbox)
}

// container returns a container with the spec that it was created with, if that still exists,
// and its current limits.
func (o *objects) container(st container.Status) *api.Container {
	spec := &specs.Spec{}
	if content := o.containers.Spec(st.ID); content != nil {
		if err := json.Unmarshal(content, spec); err != nil {
			o.log.Warn("NRI: a container's spec can't be parsed", "container", st.ID, "error", err)
		}
	}
	out := fromSpec(st, spec)
	out.Linux.Resources = adjust.Override(out.Linux.Resources, st.Resources())
	return out
}

// annotationImage is the spec's annotation with the name of the container's image.
const annotationImage = "io.kubernetes.cri.image-name"

// fromSpec returns a container with a spec.
func fromSpec(st container.Status, spec *specs.Spec) *api.Container {
	config := st.Config
	out := &api.Container{
		Id: st.ID, PodSandboxId: st.Sandbox, Name: st.Name(), State: state(st),
		Labels: maps.Clone(config.GetLabels()), Annotations: maps.Clone(spec.Annotations),
		Mounts: api.FromOCIMounts(spec.Mounts), Hooks: api.FromOCIHooks(spec.Hooks), Linux: &api.LinuxContainer{},
		CreatedAt: nanoseconds(st.Created), StartedAt: nanoseconds(st.Started), FinishedAt: nanoseconds(st.Exit.At),
		ExitCode: int32(st.Exit.Code), StatusReason: st.Reason, StatusMessage: st.Message,
		Image: &api.Image{Name: spec.Annotations[annotationImage], ConfigDigest: st.ImageID},
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	maps.Copy(out.Annotations, config.GetAnnotations())
	if st.Exit.At.IsZero() {
		out.Pid = uint32(st.Process.PID)
	}
	for _, d := range config.GetCDIDevices() {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	if u := st.User; u != nil {
		out.User = &api.User{Uid: u.UID, Gid: u.GID, AdditionalGids: u.AdditionalGids}
	}
	if p := spec.Process; p != nil {
		out.Args, out.Env = slices.Clone(p.Args), slices.Clone(p.Env)
		out.Linux.IoPriority, out.Linux.OomScoreAdj = api.FromOCILinuxIOPriority(p.IOPriority), api.Int(p.OOMScoreAdj)
		if p.Scheduler != nil {
			out.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
		}
		for _, l := range p.Rlimits {
			out.Rlimits = append(out.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
	}
	if spec.Linux != nil {
		linux(out.Linux, spec.Linux)
	}
	out.Linux.SeccompProfile = seccompProfile(config.GetLinux().GetSecurityContext().GetSeccomp())
	return out
}

func linux(out *api.LinuxContainer, spec *specs.Linux) {
	out.Namespaces, out.Devices = api.FromOCILinuxNamespaces(spec.Namespaces), api.FromOCILinuxDevices(spec.Devices)
	out.Resources = api.FromOCILinuxResources(spec.Resources, nil)
	out.CgroupsPath, out.Sysctl = spec.CgroupsPath, maps.Clone(spec.Sysctl)
	out.NetDevices = api.FromOCILinuxNetDevices(spec.NetDevices)
	if spec.Seccomp != nil {
		out.SeccompPolicy = api.FromOCILinuxSeccomp(spec.Seccomp)
	}
	if rdt := spec.IntelRdt; rdt != nil {
		out.Rdt = &api.LinuxRdt{ClosId: api.String(rdt.ClosID), Schemata: api.RepeatedString(rdt.Schemata), EnableMonitoring: api.Bool(rdt.EnableMonitoring)}
	}
}

func seccompProfile(p *runtimeapi.SecurityProfile) *api.SecurityProfile {
	if p == nil {
		return nil
	}
	return &api.SecurityProfile{ProfileType: api.SecurityProfile_ProfileType(p.GetProfileType()), LocalhostRef: p.GetLocalhostRef()}
}

func state(st container.Status) api.ContainerState {
	switch {
	case !st.Exit.At.IsZero():
		return api.ContainerState_CONTAINER_STOPPED
	case st.State == containerstate.Running:
		return api.ContainerState_CONTAINER_RUNNING
	case st.State.Live():
		return api.ContainerState_CONTAINER_CREATED
	}
	return api.ContainerState_CONTAINER_UNKNOWN
}

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
