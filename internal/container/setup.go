package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/selinux"
	"github.com/huskd/husk/internal/userns"
)

// setup is one run of the action Mount: it mounts the root file system and the volumes of a
// container and writes its bundle.
type setup struct {
	e       *entry
	sandbox Sandbox
	image   Image
	root    string // where the root file system is mounted
}

// mount mounts the root file system and writes the bundle.
func (e *entry) mount(ctx context.Context) error {
	sandbox, err := e.s.cfg.Sandboxes.Sandbox(e.Rec.Sandbox)
	if err != nil {
		return err
	}
	p := &setup{e: e, sandbox: sandbox}
	from, err := p.findImage(ctx)
	if err != nil {
		return err
	}
	e.Rec.ImageID, e.Rec.Handler = p.image.ID, sandbox.Handler
	e.Rec.StopSignal = p.image.Config.StopSignal
	if err := p.openLog(); err != nil {
		return err
	}
	p.root, err = e.s.cfg.Mounts.Mount(rootfs.Spec{Dir: e.layer(), Lower: p.image.Lower, Owner: sandbox.owner(), Label: sandbox.Labels.Mount})
	if err != nil {
		return err
	}
	restoring, err := p.restore(ctx, from)
	if err != nil {
		return err
	}
	if err := makeSources(e.Config.GetMounts()); err != nil {
		return err
	}
	config, err := p.mountVolumes(ctx)
	if err != nil {
		return err
	}
	request, err := p.specRequest()
	if err != nil {
		return err
	}
	request.Config = config
	if request.ImageVolumes, err = p.makeImageVolumes(request.User); err != nil {
		return err
	}
	result, err := spec.Container(request)
	if err != nil {
		return err
	}
	maps.Copy(result.Spec.Annotations, restoring)
	if err := injectCDI(e.Config, result.Spec); err != nil {
		return err
	}
	if err := e.adjust(ctx, result.Spec); err != nil {
		return err
	}
	keepMountFlags(result.Spec)
	if err := checkTargets(p.root, p.image.Name, result.Spec); err != nil {
		return err
	}
	for _, path := range result.Relabel {
		if err := (selinux.Policy{}).Relabel(path, result.Spec.Linux.MountLabel); err != nil {
			return err
		}
	}
	for _, note := range result.Notes {
		e.Log().Info("container: " + note)
	}
	data, err := json.Marshal(result.Spec)
	if err != nil {
		return err
	}
	if err := userns.MakeDir(e.bundle(), 0); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(e.bundle(), "config.json"), data, 0o600)
}

// holder names the container in the error that its image can't be removed.
func (p *setup) holder() string {
	m := p.sandbox.Config.GetMetadata()
	return fmt.Sprintf("container %s of pod %s/%s", p.e.name(), m.GetNamespace(), m.GetName())
}

func (p *setup) specRequest() (spec.Request, error) {
	node, _ := os.Hostname()
	r := spec.Request{
		SandboxID:   p.e.Rec.Sandbox,
		Sandbox:     p.sandbox.Config,
		Config:      p.e.Config,
		Image:       p.image.Config,
		ImageName:   p.image.Name,
		Host:        p.e.s.cfg.Host,
		NodeName:    node,
		Rootfs:      p.root,
		CgroupsPath: p.e.Status().Cgroup(p.sandbox.Cgroup),
		Namespaces:  p.sandbox.Namespaces,
		Files:       p.sandbox.Files,
		Labels:      p.sandbox.Labels,
		Limits:      p.e.s.cfg.Limits,

		Capabilities: spec.Capabilities{Daemon: spec.CapabilityNames(p.e.s.cfg.Host.Capabilities), Default: p.e.s.cfg.DefaultCapabilities},
	}
	if classes := p.e.s.cfg.ResourceClasses; classes != nil {
		var err error
		if r.Limits.BlockIO, r.Limits.RDT, err = classes.Limits(p.e.name(), p.e.Config.GetAnnotations(), p.sandbox.Config.GetAnnotations()); err != nil {
			return r, err
		}
	}
	if target := p.e.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetTargetId(); target != "" {
		st, err := p.e.s.running(target)
		if err != nil {
			return r, err
		}
		r.Namespaces.Target = fmt.Sprintf("/proc/%d/ns/pid", st.Process.PID)
	}
	passwd, err := readInside(p.root, "/etc/passwd")
	if err != nil {
		return r, err
	}
	group, err := readInside(p.root, "/etc/group")
	if err != nil {
		return r, err
	}
	if r.User, r.Home, err = spec.ResolveUser(spec.UserRequest{
		Image: p.image.Name, ImageUser: p.image.Config.User, Security: p.e.Config.GetLinux().GetSecurityContext(),
	}, passwd, group); err != nil {
		return r, err
	}
	p.e.Rec.User = &r.User
	if r.Devices, err = configDevices(p.e.Config.GetDevices()); err != nil {
		return r, err
	}
	if p.e.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		r.HostDevices = hostDevices()
	}
	if ref := seccompFile(p.e.Config); ref != "" {
		// The spec refuses a profile that doesn't exist.
		if r.Seccomp, err = os.ReadFile(ref); err != nil && !errors.Is(err, os.ErrNotExist) {
			return r, fmt.Errorf("seccomp profile: %w", err)
		}
	}
	return r, nil
}

// seccompFile returns the path of the profile that the config names, if it names one.
func seccompFile(config *runtimeapi.ContainerConfig) string {
	profile := config.GetLinux().GetSecurityContext().GetSeccomp()
	if profile.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		return ""
	}
	ref := strings.TrimPrefix(profile.GetLocalhostRef(), "localhost/")
	if !filepath.IsAbs(ref) {
		return "" // the spec refuses it
	}
	return ref
}

// openLog creates the directory of the container's log.
func (p *setup) openLog() error {
	dir := p.sandbox.Config.GetLogDirectory()
	if dir == "" || p.e.Config.GetLogPath() == "" {
		return nil
	}
	path := filepath.Join(dir, p.e.Config.GetLogPath())
	if !isFileBelow(p.e.Config.GetLogPath()) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("log_path %.80q is not the path of a file in the pod's log directory", p.e.Config.GetLogPath()))
	}
	p.e.Rec.Log = path
	return os.MkdirAll(filepath.Dir(path), 0o750)
}

// isFileBelow reports whether path can be that of a file below a directory.
func isFileBelow(path string) bool {
	tooLong := func(element string) bool { return len(element) > unix.NAME_MAX }
	return filepath.IsLocal(path) && filepath.Base(path) != "." && !strings.ContainsRune(path, 0) &&
		len(path) < unix.PathMax && !slices.ContainsFunc(strings.Split(path, "/"), tooLong)
}

// makeSources creates missing sources of bind mounts as directories, as users of docker and
// containerd expect.
func makeSources(mounts []*runtimeapi.Mount) error {
	for _, m := range mounts {
		if m.GetImage() != nil || !filepath.IsAbs(m.GetHostPath()) {
			continue // the spec refuses it
		}
		if _, err := os.Stat(m.GetHostPath()); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(m.GetHostPath(), 0o755); err != nil {
				return fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
			}
		}
	}
	return nil
}
