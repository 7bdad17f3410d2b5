// Package adjust applies adjustments of NRI plugins to a container's OCI spec. It is
// pure: the properties of the node are in its arguments.
//
// An adjustment that the node or the container's runtime doesn't support is an error: a
// plugin that pins memory to a NUMA node must know if that has no effect.
package adjust

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci/spec"
)

// Node has the properties of the node that adjustments depend on.
type Node struct {
	Host host.Facts
	// InjectCDI adds CDI devices to a spec.
	InjectCDI func(names []string, into *specs.Spec) error
	// BlockIO returns the parameters of a block I/O class, or nil if it is unknown.
	BlockIO func(class string) (*specs.LinuxBlockIO, error)
	// Relabel sets the SELinux label of all files at path.
	Relabel func(path, label string) error
	// Knows reports whether the runtime of a handler supports a version of the runtime spec,
	// such as 1.1.0.
	Knows func(handler, version string) bool
}

// Subject is a container that is about to be created.
type Subject struct {
	Name, Handler string
	// With returns the container's limits, overridden by the requested ones.
	With func(requested *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources
}

// Result is the result of Apply, in addition to the spec.
type Result struct {
	Limits *runtimeapi.LinuxContainerResources // nil if unchanged
	Notes  []string                            // lines for the log
}

// Apply applies the adjustment a to into.
func Apply(node Node, of Subject, a *api.ContainerAdjustment, into *specs.Spec) (Result, error) {
	j := adjuster{node: node, of: of, into: into}
	linux := a.GetLinux()
	err := firstError(
		func() error { return j.annotations(a.GetAnnotations()) },
		func() error { return j.env(a.GetEnv()) },
		func() error { return j.args(a.GetArgs()) },
		func() error { return j.hooks(a.GetHooks()) },
		func() error { return j.cdi(a.GetCDIDevices()) },
		func() error { return j.devices(linux.GetDevices()) },
		func() error { return j.mounts(a.GetMounts()) },
		func() error { return j.rlimits(a.GetRlimits()) },
		func() error { return j.cgroup(linux.GetCgroupsPath()) },
		func() error { return j.oomScore(linux.GetOomScoreAdj()) },
		func() error { return j.namespaces(linux.GetNamespaces()) },
		func() error { return j.sysctls(linux.GetSysctl()) },
		func() error { return j.seccomp(linux.GetSeccompPolicy()) },
		func() error { return j.resources(linux.GetResources()) },
		func() error { return j.rdt(linux.GetRdt()) },
		func() error { return j.later(linux) },
	)
	return j.result, err
}

// firstError runs steps until one fails.
func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

type adjuster struct {
	node   Node
	of     Subject
	into   *specs.Spec
	result Result
}

func bad(what, format string, args ...any) error {
	return errdefs.ErrInvalidArgument.WithMessage("adjustment of " + what + ": " + fmt.Sprintf(format, args...))
}

func (j *adjuster) annotations(requested map[string]string) error {
	if j.into.Annotations == nil && len(requested) > 0 {
		j.into.Annotations = map[string]string{}
	}
	change(j.into.Annotations, requested)
	return nil
}

// change deletes the keys marked for removal, then sets the others. A key may be in both.
func change[V any](into, requested map[string]V) {
	for key := range requested {
		if name, marked := api.IsMarkedForRemoval(key); marked {
			delete(into, name)
		}
	}
	for key, value := range requested {
		if _, marked := api.IsMarkedForRemoval(key); !marked {
			into[key] = value
		}
	}
}

// env sets and removes variables. It keeps the order of existing ones.
func (j *adjuster) env(requested []*api.KeyValue) error {
	for _, e := range requested {
		name, marked := e.IsMarkedForRemoval()
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(e.GetValue(), 0) {
			return bad("env", "%.80q is not the name of a variable, or its value has a zero byte", name)
		}
		at := slices.IndexFunc(j.into.Process.Env, func(has string) bool { return strings.HasPrefix(has, name+"=") })
		switch {
		case marked && at >= 0:
			j.into.Process.Env = slices.Delete(j.into.Process.Env, at, at+1)
		case marked:
		case at >= 0:
			j.into.Process.Env[at] = e.ToOCI()
		default:
			j.into.Process.Env = append(j.into.Process.Env, e.ToOCI())
		}
	}
	return nil
}

func (j *adjuster) args(requested []string) error {
	if len(requested) == 0 {
		return nil
	}
	if requested[0] == "" { // marks that a plugin replaces another's args
		requested = requested[1:]
	}
	if len(requested) == 0 || slices.ContainsFunc(requested, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
		return bad("args", "there is no program, or an argument has a zero byte")
	}
	j.into.Process.Args = requested
	return nil
}

func (j *adjuster) hooks(requested *api.Hooks) error {
	if requested.Hooks() == nil {
		return nil
	}
	if j.into.Hooks == nil {
		j.into.Hooks = &specs.Hooks{}
	}
	into := j.into.Hooks
	for _, kind := range []struct {
		requested []*api.Hook
		into      *[]specs.Hook
	}{
		{requested.GetPrestart(), &into.Prestart}, //nolint:staticcheck // NRI has it
		{requested.GetCreateRuntime(), &into.CreateRuntime},
		{requested.GetCreateContainer(), &into.CreateContainer},
		{requested.GetStartContainer(), &into.StartContainer},
		{requested.GetPoststart(), &into.Poststart},
		{requested.GetPoststop(), &into.Poststop},
	} {
		for _, h := range kind.requested {
			if !path.IsAbs(h.GetPath()) {
				return bad("hooks", "%.80q is not an absolute path", h.GetPath())
			}
			*kind.into = append(*kind.into, h.ToOCI())
		}
	}
	return nil
}

func (j *adjuster) cdi(requested []*api.CDIDevice) error {
	if len(requested) == 0 {
		return nil
	}
	var names []string
	for _, d := range requested {
		names = append(names, d.GetName())
	}
	return j.node.InjectCDI(names, j.into)
}

func (j *adjuster) devices(requested []*api.LinuxDevice) error {
	for _, d := range requested {
		at, marked := d.IsMarkedForRemoval()
		if !path.IsAbs(at) {
			return bad("devices", "%.80q is not an absolute path", at)
		}
		j.into.Linux.Devices = slices.DeleteFunc(j.into.Linux.Devices, func(has specs.LinuxDevice) bool { return has.Path == at })
		if marked {
			continue
		}
		if !slices.Contains([]string{"b", "c", "p", "u"}, d.GetType()) {
			return bad("devices", "%s: type %.80q is none of b, c, p, u", at, d.GetType())
		}
		out := d.ToOCI()
		j.into.Linux.Devices = append(j.into.Linux.Devices, out)
		j.into.Linux.Resources.Devices = append(j.into.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
			Allow: true, Type: out.Type, Major: &out.Major, Minor: &out.Minor, Access: d.AccessString(),
		})
	}
	return nil
}

func (j *adjuster) mounts(requested []*api.Mount) error {
	for _, m := range requested {
		at, marked := m.IsMarkedForRemoval()
		if !path.IsAbs(at) || path.Clean(at) == "/" || slices.Contains(strings.Split(at, "/"), "..") {
			return bad("mounts", "%.80q is not an absolute path below the root without ..", at)
		}
		at = path.Clean(at)
		j.into.Mounts = slices.DeleteFunc(j.into.Mounts, func(has specs.Mount) bool { return path.Clean(has.Destination) == at })
		if marked {
			continue
		}
		var propagation string
		out := m.ToOCI(&propagation)
		out.Destination = at
		if err := j.relabel(&out); err != nil {
			return err
		}
		// The runtime makes the root's mount private, which would cut this mount's
		// propagation from the host.
		switch root := &j.into.Linux.RootfsPropagation; propagation {
		case "rshared", "shared":
			*root = "rshared"
		case "rslave", "slave":
			*root = cmp.Or(*root, "rslave")
		}
		j.into.Mounts = append(j.into.Mounts, out)
	}
	if len(requested) > 0 { // parents before mounts below them
		slices.SortStableFunc(j.into.Mounts, func(a, b specs.Mount) int { return cmp.Compare(depth(a), depth(b)) })
	}
	return nil
}

// relabel handles NRI's relabel option, which runtimes don't know.
func (j *adjuster) relabel(m *specs.Mount) error {
	kept := slices.DeleteFunc(m.Options, func(o string) bool { return o == api.SELinuxRelabel })
	requested, label := len(kept) < len(m.Options), j.into.Linux.MountLabel
	if m.Options = kept; !requested || label == "" {
		return nil
	}
	return j.node.Relabel(m.Source, label)
}

func depth(m specs.Mount) int { return strings.Count(path.Clean(m.Destination), "/") }

func (j *adjuster) rlimits(requested []*api.POSIXRlimit) error {
	process := j.into.Process
	for _, l := range requested {
		if !strings.HasPrefix(l.GetType(), "RLIMIT_") || l.GetSoft() > l.GetHard() {
			return bad("rlimits", "%.80q, soft %d, hard %d: want RLIMIT_NAME, and soft at most hard", l.GetType(), l.GetSoft(), l.GetHard())
		}
		process.Rlimits = slices.DeleteFunc(process.Rlimits, func(has specs.POSIXRlimit) bool { return has.Type == l.GetType() })
		process.Rlimits = append(process.Rlimits, specs.POSIXRlimit{Type: l.GetType(), Hard: l.GetHard(), Soft: l.GetSoft()})
	}
	return nil
}

// cgroup sets the cgroup. It must end in the container's own name, because its processes are
// killed and it is removed with the container.
func (j *adjuster) cgroup(requested string) error {
	if requested == "" {
		return nil
	}
	if own := path.Base(j.into.Linux.CgroupsPath); !path.IsAbs(requested) || path.Clean(requested) != requested || path.Base(requested) != own {
		return bad("cgroups_path", "%.80q is not a clean absolute path that ends in %s", requested, own)
	}
	j.into.Linux.CgroupsPath = requested
	return nil
}

// oomScore sets the OOM score, or the lowest that huskd may set.
func (j *adjuster) oomScore(requested *api.OptionalInt) error {
	score := requested.Get()
	if score == nil {
		return nil
	}
	if *score < -1000 || *score > 1000 {
		return bad("oom_score_adj", "%d is not between -1000 and 1000", *score)
	}
	if floor := j.node.Host.OOMScoreFloor; *score < floor {
		j.result.Notes = append(j.result.Notes, fmt.Sprintf("oom_score_adj is %d, not %d: the daemon has no CAP_SYS_RESOURCE to lower it", floor, *score))
		*score = floor
	}
	j.into.Process.OOMScoreAdj = score
	return nil
}

func (j *adjuster) namespaces(requested []*api.LinuxNamespace) error {
	into := j.into.Linux
	for _, n := range requested {
		kind, marked := n.IsMarkedForRemoval()
		if n.GetPath() != "" && !path.IsAbs(n.GetPath()) {
			return bad("namespaces", "%s: %.80q is not an absolute path", kind, n.GetPath())
		}
		into.Namespaces = slices.DeleteFunc(into.Namespaces, func(has specs.LinuxNamespace) bool { return string(has.Type) == kind })
		if !marked {
			into.Namespaces = append(into.Namespaces, specs.LinuxNamespace{Type: specs.LinuxNamespaceType(kind), Path: n.GetPath()})
		}
	}
	return nil
}

func (j *adjuster) sysctls(requested map[string]string) error {
	if j.into.Linux.Sysctl == nil && len(requested) > 0 {
		j.into.Linux.Sysctl = map[string]string{}
	}
	change(j.into.Linux.Sysctl, requested)
	return nil
}

func (j *adjuster) seccomp(requested *api.LinuxSeccomp) error {
	if requested == nil {
		return nil
	}
	out := &specs.LinuxSeccomp{
		DefaultAction:    specs.LinuxSeccompAction(requested.GetDefaultAction()),
		ListenerPath:     requested.GetListenerPath(),
		ListenerMetadata: requested.GetListenerMetadata(),
		Syscalls:         api.ToOCILinuxSyscalls(requested.GetSyscalls()),
	}
	if errno := requested.GetDefaultErrno(); errno != nil {
		n := uint(errno.GetValue())
		out.DefaultErrnoRet = &n
	}
	for _, arch := range requested.GetArchitectures() {
		out.Architectures = append(out.Architectures, specs.Arch(arch))
	}
	for _, flag := range requested.GetFlags() {
		out.Flags = append(out.Flags, specs.LinuxSeccompFlag(flag))
	}
	j.into.Linux.Seccomp = out
	return nil
}

// later applies adjustments that need a later version of the runtime spec. Older runtimes
// would silently ignore them.
func (j *adjuster) later(requested *api.LinuxContainerAdjustment) error {
	if s := requested.GetScheduler(); s != nil {
		j.into.Process.Scheduler = s.ToOCI()
		if err := j.needs("scheduler", "1.1.0"); err != nil {
			return err
		}
	}
	if p := requested.GetIoPriority(); p != nil && p.GetClass() != api.IOPrioClass_IOPRIO_CLASS_NONE {
		j.into.Process.IOPriority = p.ToOCI()
		if err := j.needs("io_priority", "1.1.0"); err != nil {
			return err
		}
	}
	if devices := requested.GetNetDevices(); len(devices) > 0 {
		if j.into.Linux.NetDevices == nil {
			j.into.Linux.NetDevices = map[string]specs.LinuxNetDevice{}
		}
		for _, name := range slices.Sorted(maps.Keys(devices)) {
			if old, marked := api.IsMarkedForRemoval(name); marked {
				delete(j.into.Linux.NetDevices, old)
			} else {
				j.into.Linux.NetDevices[name] = devices[name].ToOCI()
			}
		}
		if err := j.needs("net_devices", "1.3.0"); err != nil {
			return err
		}
	}
	if p := requested.GetMemoryPolicy(); p != nil {
		j.into.Linux.MemoryPolicy = p.ToOCI()
		return j.needs("memory_policy", "1.3.0")
	}
	return nil
}

// needs returns an error unless the runtime supports a version of the runtime spec.
func (j *adjuster) needs(what, version string) error {
	if !j.node.Knows(j.of.Handler, version) {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("adjustment of %s: the container's runtime does not know version %s of the runtime spec, which it needs: use another runtime", what, version))
	}
	j.into.Version = max(j.into.Version, version)
	return nil
}

// resources sets limits. Those that CRI has are merged into the container's CRI limits, so
// that later updates keep them.
func (j *adjuster) resources(requested *api.LinuxResources) error {
	requested = requested.Strip()
	if requested == nil {
		return nil
	}
	if class := requested.GetBlockioClass().Get(); class != nil {
		if err := j.blockIO(*class); err != nil {
			return err
		}
	}
	if class := requested.GetRdtClass().Get(); class != nil {
		j.into.Linux.IntelRdt = nil
		if *class != "" {
			j.into.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: *class}
		}
	}
	want := j.of.With(criLimits(requested))
	set, notes, err := spec.Resources(j.of.Name, want, j.node.Host)
	if err != nil {
		return err
	}
	j.result.Limits, j.result.Notes = want, append(j.result.Notes, notes...)
	into := j.into.Linux.Resources
	into.CPU, into.Memory, into.HugepageLimits, into.Unified = set.CPU, set.Memory, set.HugepageLimits, set.Unified
	setNonCRI(into, requested)
	return nil
}

func (j *adjuster) blockIO(class string) (err error) {
	into := &j.into.Linux.Resources.BlockIO
	*into = nil
	if class == "" {
		return nil
	}
	if *into, err = j.node.BlockIO(class); err == nil && *into == nil {
		err = bad("blockio_class", "unknown class %.80q: define it in the file of --blockio-config", class)
	}
	return err
}

func (j *adjuster) rdt(requested *api.LinuxRdt) error {
	if requested == nil {
		return nil
	}
	if requested.GetRemove() {
		j.into.Linux.IntelRdt = nil
	}
	id, schemata, monitoring := requested.GetClosId().Get(), requested.GetSchemata().Get(), requested.GetEnableMonitoring().Get()
	if id == nil && schemata == nil && monitoring == nil {
		return nil
	}
	out := j.into.Linux.IntelRdt
	if out == nil {
		out = &specs.LinuxIntelRdt{}
		j.into.Linux.IntelRdt = out
	}
	if id != nil {
		out.ClosID = *id
	}
	if schemata == nil && monitoring == nil {
		return nil
	}
	if schemata != nil {
		out.Schemata = *schemata
	}
	if monitoring != nil {
		out.EnableMonitoring = *monitoring
	}
	return j.needs("rdt", "1.3.0")
}
