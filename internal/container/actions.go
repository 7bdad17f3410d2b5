package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/spec"
)

// act performs one action. Each of the way down can be repeated and succeeds
// on what isn't there.
func (b *box) act(ctx context.Context, do containerstate.Action) error {
	if do == containerstate.Create { // the wait for one's turn is not a part of it
		select {
		case b.s.creating <- struct{}{}:
			defer func() { <-b.s.creating }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	switch do {
	case containerstate.Mount:
		return b.mount(ctx)
	case containerstate.Create:
		process, err := b.s.cfg.Runtime.Create(ctx, b.request())
		b.rec.Process = process
		if refusal, ok := errors.AsType[*oci.StartError](err); ok {
			b.rec.Refusal = &oci.StartError{Code: refusal.Code, Message: err.Error()}
			return nil
		}
		return err
	case containerstate.Start:
		if b.rec.Refusal != nil {
			return b.rec.Refusal
		}
		if err := (hooked{b}).tell(ctx, BeforeStart); err != nil {
			return err
		}
		b.rec.Started = time.Now()
		return b.s.cfg.Runtime.Start(ctx, b.id)
	case containerstate.Release:
		return b.releaseAll(ctx)
	case containerstate.Clean:
		_ = hooked{b}.tell(ctx, BeforeRemove)
		if b.release != nil {
			b.release()
			b.release = nil
		}
		return nil
	}
	return fmt.Errorf("unknown action %q", do)
}

func (b *box) request() oci.Create {
	return oci.Create{
		ID:        b.id,
		Bundle:    b.bundle(),
		Log:       b.rec.Log,
		Terminal:  b.config.GetTty(),
		Stdin:     b.config.GetStdin(),
		StdinOnce: b.config.GetStdinOnce(),
		Handler:   b.rec.Handler,
		Restore:   b.from,
	}
}

// mount mounts the root file system and writes the bundle.
func (b *box) mount(ctx context.Context) error {
	sandbox, err := b.s.cfg.Sandboxes.Sandbox(b.sandbox)
	if err != nil {
		return err
	}
	image, from, err := checkpointer{b}.image(ctx, sandbox)
	if err != nil {
		return err
	}
	b.rec.ImageID, b.rec.Handler = image.ID, sandbox.Handler
	b.rec.StopSignal = image.Config.StopSignal
	if err := b.openLog(sandbox.Config); err != nil {
		return err
	}
	root, err := b.s.cfg.Mounts.Mount(rootfs.Spec{Dir: b.layer(), Lower: image.Lower, Owner: sandbox.owner(), Label: sandbox.Labels.Mount})
	if err != nil {
		return err
	}
	restoring, err := checkpointer{b}.restore(ctx, from, root)
	if err != nil {
		return err
	}
	if err := makeSources(b.config.GetMounts()); err != nil {
		return err
	}
	config, err := volumes{b, sandbox}.mount(ctx)
	if err != nil {
		return err
	}
	request, err := b.specRequest(sandbox, image, root)
	if err != nil {
		return err
	}
	request.Config = config
	result, err := spec.Container(request)
	if err != nil {
		return err
	}
	maps.Copy(result.Spec.Annotations, restoring)
	if err := injectCDI(b.config, result.Spec); err != nil {
		return err
	}
	if err := (hooked{b}).adjust(ctx, result.Spec); err != nil {
		return err
	}
	for _, path := range result.Relabel {
		if b.s.cfg.Relabel == nil {
			break
		}
		if err := b.s.cfg.Relabel(path, result.Spec.Linux.MountLabel); err != nil {
			return err
		}
	}
	for _, note := range result.Notes {
		teller{b}.log().Info("container: " + note)
	}
	data, err := json.Marshal(result.Spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.bundle(), 0o711); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.bundle(), "config.json"), data, 0o600)
}

// holder names the container to whoever wants to remove its image.
func (b *box) holder(sandbox *runtimeapi.PodSandboxConfig) string {
	m := sandbox.GetMetadata()
	return fmt.Sprintf("container %s of pod %s/%s", b.name(), m.GetNamespace(), m.GetName())
}

func (b *box) specRequest(sandbox Sandbox, image Image, root string) (spec.Request, error) {
	node, _ := os.Hostname()
	r := spec.Request{
		SandboxID:   b.sandbox,
		Sandbox:     sandbox.Config,
		Config:      b.config,
		Image:       image.Config,
		ImageName:   image.Name,
		Host:        b.s.cfg.Host,
		NodeName:    node,
		Rootfs:      root,
		CgroupsPath: b.status().Cgroup(sandbox.Cgroup),
		Namespaces:  sandbox.Namespaces,
		Files:       sandbox.Files,
		Labels:      sandbox.Labels,
		Limits:      b.s.cfg.Limits,

		Capabilities: spec.CapabilityNames(b.s.cfg.Host.Capabilities),
	}
	if classes := b.s.cfg.Classes; classes != nil {
		var err error
		if r.Limits.BlockIO, r.Limits.RDT, err = classes(b.name(), b.config.GetAnnotations(), sandbox.Config.GetAnnotations()); err != nil {
			return r, err
		}
	}
	if target := b.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetTargetId(); target != "" {
		st, err := b.s.running(target)
		if err != nil {
			return r, err
		}
		r.Namespaces.Target = fmt.Sprintf("/proc/%d/ns/pid", st.Process.PID)
	}
	passwd, err := readInside(root, "/etc/passwd")
	if err != nil {
		return r, err
	}
	group, err := readInside(root, "/etc/group")
	if err != nil {
		return r, err
	}
	if r.User, r.Home, err = spec.ResolveUser(spec.UserRequest{
		Container: b.name(), Image: image.Name, ImageUser: image.Config.User, Security: b.config.GetLinux().GetSecurityContext(),
	}, passwd, group); err != nil {
		return r, err
	}
	b.rec.User = &r.User
	if r.Devices, err = configDevices(b.config.GetDevices()); err != nil {
		return r, err
	}
	if b.config.GetLinux().GetSecurityContext().GetPrivileged() {
		r.HostDevices = hostDevices()
	}
	if ref := seccompFile(b.config); ref != "" {
		// One that isn't there the spec misses.
		if r.Seccomp, err = os.ReadFile(ref); err != nil && !errors.Is(err, os.ErrNotExist) {
			return r, fmt.Errorf("seccomp profile: %w", err)
		}
	}
	return r, nil
}

// seccompFile is the path of the profile that the config names, if it names one.
func seccompFile(config *runtimeapi.ContainerConfig) string {
	profile := config.GetLinux().GetSecurityContext().GetSeccomp()
	if profile.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		return ""
	}
	ref := strings.TrimPrefix(profile.GetLocalhostRef(), "localhost/")
	if !filepath.IsAbs(ref) {
		return "" // the spec says what is wrong with it
	}
	return ref
}

// maxAccounts bounds what is read of an image's passwd and group files.
const maxAccounts = 8 << 20

// readInside reads a file of the image; nil if it has none. No symlink in the
// image leads outside of it.
func readInside(root, name string) ([]byte, error) {
	f, err := pathrs.OpenInRoot(root, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("image's %s: %w", name, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	g, err := pathrs.Reopen(f, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("image's %s: %w", name, err)
	}
	defer g.Close()
	return io.ReadAll(io.LimitReader(g, maxAccounts))
}

// openLog makes the directory of the container's log.
func (b *box) openLog(sandbox *runtimeapi.PodSandboxConfig) error {
	if sandbox.GetLogDirectory() == "" || b.config.GetLogPath() == "" {
		return nil
	}
	path := filepath.Join(sandbox.GetLogDirectory(), b.config.GetLogPath())
	if !isFileBelow(b.config.GetLogPath()) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("log_path %.80q is not the path of a file in the pod's log directory", b.config.GetLogPath()))
	}
	b.rec.Log = path
	return os.MkdirAll(filepath.Dir(path), 0o755)
}

// isFileBelow says whether a path can be that of a file in a directory.
func isFileBelow(path string) bool {
	tooLong := func(element string) bool { return len(element) > unix.NAME_MAX }
	return filepath.IsLocal(path) && filepath.Base(path) != "." && !strings.ContainsRune(path, 0) &&
		len(path) < unix.PathMax && !slices.ContainsFunc(strings.Split(path, "/"), tooLong)
}

// makeSources makes the missing sources of bind mounts as directories, as the
// users of docker and containerd expect.
func makeSources(mounts []*runtimeapi.Mount) error {
	for _, m := range mounts {
		if m.GetImage() != nil || !filepath.IsAbs(m.GetHostPath()) {
			continue // the spec says what is wrong with it
		}
		if _, err := os.Stat(m.GetHostPath()); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(m.GetHostPath(), 0o755); err != nil {
				return fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
			}
		}
	}
	return nil
}

// releaseAll ends what is left of the container and deletes its files.
func (b *box) releaseAll(ctx context.Context) error {
	if err := b.s.cfg.Runtime.Delete(ctx, b.id); err != nil {
		return err
	}
	_ = hooked{b}.tell(ctx, AfterStop)
	if err := b.s.unmountAll(b.layer()); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(b.layer()), os.RemoveAll(b.bundle()))
}
