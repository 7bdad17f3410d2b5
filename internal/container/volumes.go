package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/internal/userns"
)

// hold keeps an image until the container is removed.
func (b *box) hold(id, holder string) error {
	release, err := b.s.cfg.Images.Hold(id, holder)
	if err != nil {
		return err
	}
	others := b.release
	b.release = func() {
		release()
		if others != nil {
			others()
		}
	}
	return nil
}

// volumesDir has, in a container's directory, the images that are mounted into
// it, each in a directory of its own.
const volumesDir = "volumes"

// volumes mounts the images that a container has beside its own, and what must
// be shown as owned by the users of its user namespace.
type volumes struct {
	*box
	sandbox Sandbox
}

// mount mounts the images that the config's mounts name, and the sources whose
// owners they map, and returns the config with the paths where they are in
// their place.
func (b volumes) mount(ctx context.Context) (*runtimeapi.ContainerConfig, error) {
	config := b.config
	found := map[string]string{}
	for i, m := range b.config.GetMounts() {
		mapped := len(m.GetUidMappings()) > 0 || len(m.GetGidMappings()) > 0
		if m.GetImage() == nil && !mapped {
			continue
		}
		if config == b.config {
			config = proto.CloneOf(b.config)
		}
		mount := config.Mounts[i]
		mount.UidMappings, mount.GidMappings = nil, nil
		if m.GetImage() == nil {
			path, err := b.mapOwners(i)
			if err != nil {
				return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
			}
			mount.HostPath = path
			continue
		}
		path, id, err := b.mountOne(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
		found[m.GetContainerPath()] = id
		mount.HostPath, mount.Image, mount.ImageSubPath, mount.Readonly = path, nil, "", true
	}
	b.rec.Volumes = found
	return config, nil
}

// mountOne mounts the image of mount i and returns where it, or the part of
// it that is asked for, is.
func (b volumes) mountOne(ctx context.Context, i int) (path, id string, err error) {
	m := b.config.GetMounts()[i]
	switch {
	case m.GetImage().GetImage() == "":
		return "", "", errdefs.ErrInvalidArgument.WithMessage("the name of its image is empty")
	case m.GetHostPath() != "":
		return "", "", errdefs.ErrInvalidArgument.WithMessage("it has an image and a host_path: choose one")
	}
	image, err := b.s.cfg.Images.Image(ctx, m.GetImage().GetImage())
	if err != nil {
		return "", "", err
	}
	if err := b.hold(image.ID, b.holder(b.sandbox.Config)); err != nil {
		return "", "", err
	}
	root, err := b.s.cfg.Mounts.Mount(rootfs.Spec{Dir: filepath.Join(b.layer(), volumesDir, strconv.Itoa(i)), Lower: image.Lower, ReadOnly: true, Owner: b.sandbox.owner()})
	if err != nil || m.GetImageSubPath() == "" {
		return root, image.ID, err
	}
	path, err = inside(root, m.GetImageSubPath())
	return path, image.ID, err
}

// mapOwners mounts the source of mount i as the sandbox's user namespace has
// it, and returns where. No OCI runtime has to be able to.
func (b volumes) mapOwners(i int) (string, error) {
	m := b.config.GetMounts()[i]
	user := userOptions(b.sandbox.Config)
	if user == nil || !sameIDs(m.GetUidMappings(), user.GetUids()) || !sameIDs(m.GetGidMappings(), user.GetGids()) {
		return "", errdefs.ErrInvalidArgument.WithMessage("uidMappings and gidMappings must be those of the pod's user namespace")
	}
	if m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
		return "", errdefs.ErrInvalidArgument.WithMessage("no mount that is made in a user namespace reaches the node: use another propagation than BIDIRECTIONAL")
	}
	info, err := os.Stat(m.GetHostPath())
	if err != nil {
		return "", err
	}
	at := rootfs.Path(filepath.Join(b.layer(), volumesDir, strconv.Itoa(i)))
	if info.IsDir() {
		err = os.MkdirAll(at, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(at), 0o755); err == nil {
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return "", err
	}
	return at, userns.Mount(m.GetHostPath(), at, b.sandbox.Namespaces.User)
}

func sameIDs(a, b []*runtimeapi.IDMapping) bool {
	return slices.EqualFunc(a, b, func(a, b *runtimeapi.IDMapping) bool { return proto.Equal(a, b) })
}

// userOptions are those of the sandbox's own user namespace; nil without one.
func userOptions(sandbox *runtimeapi.PodSandboxConfig) *runtimeapi.UserNamespace {
	user := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if user == nil || user.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return user
}

// owner is who owns the files of its containers' images.
func (s Sandbox) owner() *rootfs.Owner {
	user := userOptions(s.Config)
	if user == nil {
		return nil
	}
	return &rootfs.Owner{Namespace: s.Namespaces.User, UID: int(user.GetUids()[0].GetHostId()), GID: int(user.GetGids()[0].GetHostId())}
}

// inside returns the path of what is at sub in an image. A symlink on the way
// leads to where it does within the image.
func inside(root, sub string) (string, error) {
	f, err := pathrs.OpenInRoot(root, sub)
	if errors.Is(err, os.ErrNotExist) {
		return "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("its image has no %q", sub))
	}
	if err != nil {
		return "", fmt.Errorf("image_sub_path %q: %w", sub, err)
	}
	defer f.Close()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// unmountAll unmounts the root file system and the volumes below a container's
// directory.
func (s *Service) unmountAll(dir string) error {
	mounted, _ := filepath.Glob(filepath.Join(dir, volumesDir, "*"))
	var errs []error
	for _, volume := range mounted {
		errs = append(errs, s.cfg.Mounts.Unmount(volume))
	}
	return errors.Join(append(errs, s.cfg.Mounts.Unmount(dir))...)
}
