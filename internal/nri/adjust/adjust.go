// Package adjust applies what NRI plugins want of a container to its OCI spec.
// It is pure: what it must know of the node is in its arguments.
//
// What the node or the container's runtime can't do is an error: a plugin that
// pins memory to a NUMA node must not find out later that nobody listened.
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

// Node is what of a node adjustments need.
type Node struct {
	Host host.Facts
	// InjectCDI adds CDI devices to a spec.
	InjectCDI func(names []string, into *specs.Spec) error
	// BlockIO is what a class of block I/O stands for; nil if it isn't known.
	BlockIO func(class string) (*specs.LinuxBlockIO, error)
	// Relabel gives all that is at a path a label of SELinux.
	Relabel func(path, label string) error
	// Knows says whether the runtime of a handler knows a version of the
	// runtime spec, such as 1.1.0.
	Knows func(handler, version string) bool
}

// Subject is a container that is about to be created.
type Subject struct {
	Name, Handler string
	// With are its limits with what is asked.
	With func(asked *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources
}

// Result is what became of a container beside its spec.
type Result struct {
	Limits *runtimeapi.LinuxContainerResources // nil if they were left
	Notes  []string                            // lines for the log
}

// Apply changes into as a wants it.
func Apply(node Node, of Subject, a *api.ContainerAdjustment, into *specs.Spec) (Result, error) {
	j := adjuster{node: node, of: of, into: into}
	linux := a.GetLinux()
	err := firstOf(
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

func firstOf(steps ...func() error) error {
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

func (j *adjuster) annotations(asked map[string]string) error {
	if j.into.Annotations == nil && len(asked) > 0 {
		j.into.Annotations = map[string]string{}
	}
	change(j.into.Annotations, asked)
	return nil
}

// change removes the marked keys and sets the others, which may be the same.
func change[V any](into, asked map[string]V) {
	for key := range asked {
		if name, marked := api.IsMarkedForRemoval(key); marked {
			delete(into, name)
		}
	}
	for key, value := range asked {
		if _, marked := api.IsMarkedForRemoval(key); !marked {
			into[key] = value
		}
	}
}

// env keeps the order of what is there. A variable has one value.
func (j *adjuster) env(asked []*api.KeyValue) error {
	for _, e := range asked {
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

func (j *adjuster) args(asked []string) error {
	if len(asked) == 0 {
		return nil
	}
	if asked[0] == "" { // how a plugin says that it replaces another's
		asked = asked[1:]
	}
	if len(asked) == 0 || slices.ContainsFunc(asked, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
		return bad("args", "there is no program, or an argument has a zero byte")
	}
	j.into.Process.Args = asked
	return nil
}

func (j *adjuster) hooks(asked *api.Hooks) error {
	if asked.Hooks() == nil {
		return nil
	}
	if j.into.Hooks == nil {
		j.into.Hooks = &specs.Hooks{}
	}
	into := j.into.Hooks
	for _, kind := range []struct {
		asked []*api.Hook
		into  *[]specs.Hook
	}{
		{asked.GetPrestart(), &into.Prestart}, //nolint:staticcheck // NRI has it
		{asked.GetCreateRuntime(), &into.CreateRuntime},
		{asked.GetCreateContainer(), &into.CreateContainer},
		{asked.GetStartContainer(), &into.StartContainer},
		{asked.GetPoststart(), &into.Poststart},
		{asked.GetPoststop(), &into.Poststop},
	} {
		for _, h := range kind.asked {
			if !path.IsAbs(h.GetPath()) {
				return bad("hooks", "%.80q is not an absolute path", h.GetPath())
			}
			*kind.into = append(*kind.into, h.ToOCI())
		}
	}
	return nil
}

func (j *adjuster) cdi(asked []*api.CDIDevice) error {
	if len(asked) == 0 {
		return nil
	}
	var names []string
	for _, d := range asked {
		names = append(names, d.GetName())
	}
	return j.node.InjectCDI(names, j.into)
}

func (j *adjuster) devices(asked []*api.LinuxDevice) error {
	for _, d := range asked {
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

func (j *adjuster) mounts(asked []*api.Mount) error {
	for _, m := range asked {
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
		// The runtime makes the root private unless a mount in it is to stay
		// connected to the host's.
		switch root := &j.into.Linux.RootfsPropagation; propagation {
		case "rshared", "shared":
			*root = "rshared"
		case "rslave", "slave":
			*root = cmp.Or(*root, "rslave")
		}
		j.into.Mounts = append(j.into.Mounts, out)
	}
	if len(asked) > 0 { // what is mounted on goes first
		slices.SortStableFunc(j.into.Mounts, func(a, b specs.Mount) int { return cmp.Compare(depth(a), depth(b)) })
	}
	return nil
}

// relabel does what the option of NRI that no runtime knows wants.
func (j *adjuster) relabel(m *specs.Mount) error {
	kept := slices.DeleteFunc(m.Options, func(o string) bool { return o == api.SELinuxRelabel })
	wanted, label := len(kept) < len(m.Options), j.into.Linux.MountLabel
	if m.Options = kept; !wanted || label == "" {
		return nil
	}
	return j.node.Relabel(m.Source, label)
}

func depth(m specs.Mount) int { return strings.Count(path.Clean(m.Destination), "/") }

func (j *adjuster) rlimits(asked []*api.POSIXRlimit) error {
	process := j.into.Process
	for _, l := range asked {
		if !strings.HasPrefix(l.GetType(), "RLIMIT_") || l.GetSoft() > l.GetHard() {
			return bad("rlimits", "%.80q, soft %d, hard %d: want RLIMIT_NAME, and soft at most hard", l.GetType(), l.GetSoft(), l.GetHard())
		}
		process.Rlimits = slices.DeleteFunc(process.Rlimits, func(has specs.POSIXRlimit) bool { return has.Type == l.GetType() })
		process.Rlimits = append(process.Rlimits, specs.POSIXRlimit{Type: l.GetType(), Hard: l.GetHard(), Soft: l.GetSoft()})
	}
	return nil
}

// cgroup refuses one that could be somebody else's: with the container it is
// emptied and removed.
func (j *adjuster) cgroup(asked string) error {
	if asked == "" {
		return nil
	}
	if own := path.Base(j.into.Linux.CgroupsPath); !path.IsAbs(asked) || path.Clean(asked) != asked || path.Base(asked) != own {
		return bad("cgroups_path", "%.80q is not a clean absolute path that ends in %s", asked, own)
	}
	j.into.Linux.CgroupsPath = asked
	return nil
}

// oomScore sets the score, or the lowest that the host lets us give.
func (j *adjuster) oomScore(asked *api.OptionalInt) error {
	score := asked.Get()
	if score == nil {
		return nil
	}
	if *score < -1000 || *score > 1000 {
		return bad("oom_score_adj", "%d is not within -1000…1000", *score)
	}
	if floor := j.node.Host.OOMScoreFloor; *score < floor {
		j.result.Notes = append(j.result.Notes, fmt.Sprintf("oom_score_adj is %d, not %d: the daemon has no CAP_SYS_RESOURCE to lower it", floor, *score))
		*score = floor
	}
	j.into.Process.OOMScoreAdj = score
	return nil
}

func (j *adjuster) namespaces(asked []*api.LinuxNamespace) error {
	into := j.into.Linux
	for _, n := range asked {
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

func (j *adjuster) sysctls(asked map[string]string) error {
	if j.into.Linux.Sysctl == nil && len(asked) > 0 {
		j.into.Linux.Sysctl = map[string]string{}
	}
	change(j.into.Linux.Sysctl, asked)
	return nil
}

func (j *adjuster) seccomp(asked *api.LinuxSeccomp) error {
	if asked == nil {
		return nil
	}
	out := &specs.LinuxSeccomp{
		DefaultAction:    specs.LinuxSeccompAction(asked.GetDefaultAction()),
		ListenerPath:     asked.GetListenerPath(),
		ListenerMetadata: asked.GetListenerMetadata(),
		Syscalls:         api.ToOCILinuxSyscalls(asked.GetSyscalls()),
	}
	if errno := asked.GetDefaultErrno(); errno != nil {
		n := uint(errno.GetValue())
		out.DefaultErrnoRet = &n
	}
	for _, arch := range asked.GetArchitectures() {
		out.Architectures = append(out.Architectures, specs.Arch(arch))
	}
	for _, flag := range asked.GetFlags() {
		out.Flags = append(out.Flags, specs.LinuxSeccompFlag(flag))
	}
	j.into.Linux.Seccomp = out
	return nil
}

// later are adjustments that older runtimes don't know, and would leave out
// without a word.
func (j *adjuster) later(asked *api.LinuxContainerAdjustment) error {
	if s := asked.GetScheduler(); s != nil {
		j.into.Process.Scheduler = s.ToOCI()
		if err := j.needs("scheduler", "1.1.0"); err != nil {
			return err
		}
	}
	if p := asked.GetIoPriority(); p != nil && p.GetClass() != api.IOPrioClass_IOPRIO_CLASS_NONE {
		j.into.Process.IOPriority = p.ToOCI()
		if err := j.needs("io_priority", "1.1.0"); err != nil {
			return err
		}
	}
	if devices := asked.GetNetDevices(); len(devices) > 0 {
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
	if p := asked.GetMemoryPolicy(); p != nil {
		j.into.Linux.MemoryPolicy = p.ToOCI()
		return j.needs("memory_policy", "1.3.0")
	}
	return nil
}

// needs has the runtime know a version of the runtime spec.
func (j *adjuster) needs(what, version string) error {
	if !j.node.Knows(j.of.Handler, version) {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("adjustment of %s: the container's runtime does not know version %s of the runtime spec, which has it: use another", what, version))
	}
	j.into.Version = max(j.into.Version, version)
	return nil
}

// resources sets the limits that CRI has words for as if CRI had asked for them,
// so that later changes keep them, and the others as they are.
func (j *adjuster) resources(asked *api.LinuxResources) error {
	asked = asked.Strip()
	if asked == nil {
		return nil
	}
	if class := asked.GetBlockioClass().Get(); class != nil {
		if err := j.blockIO(*class); err != nil {
			return err
		}
	}
	if class := asked.GetRdtClass().Get(); class != nil {
		j.into.Linux.IntelRdt = nil
		if *class != "" {
			j.into.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: *class}
		}
	}
	want := j.of.With(limitsOf(asked))
	set, notes, err := spec.Resources(j.of.Name, want, j.node.Host)
	if err != nil {
		return err
	}
	j.result.Limits, j.result.Notes = want, append(j.result.Notes, notes...)
	into := j.into.Linux.Resources
	into.CPU, into.Memory, into.HugepageLimits, into.Unified = set.CPU, set.Memory, set.HugepageLimits, set.Unified
	beyond(into, asked)
	return nil
}

func (j *adjuster) blockIO(class string) (err error) {
	into := &j.into.Linux.Resources.BlockIO
	*into = nil
	if class == "" {
		return nil
	}
	if *into, err = j.node.BlockIO(class); err == nil && *into == nil {
		err = bad("blockio_class", "no class %.80q is known here: name the file of classes by --blockio-config", class)
	}
	return err
}

func (j *adjuster) rdt(asked *api.LinuxRdt) error {
	if asked == nil {
		return nil
	}
	if asked.GetRemove() {
		j.into.Linux.IntelRdt = nil
	}
	id, schemata, monitoring := asked.GetClosId().Get(), asked.GetSchemata().Get(), asked.GetEnableMonitoring().Get()
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
