package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/internal/userns"
)

// volumesDir is the directory, in that of a container, of the mounted volumes. Each has a directory
// of its own, named for its index in the config.
const volumesDir = "volumes"

// mountVolumes mounts the images that the config's mounts name, and the sources whose owners they
// map. It returns the config with the paths of these mounts in their place.
func (p *setup) mountVolumes(ctx context.Context) (*runtimeapi.ContainerConfig, error) {
	config := p.e.Config
	images := map[string]string{}
	for i, m := range p.e.Config.GetMounts() {
		mapped := len(m.GetUidMappings()) > 0 || len(m.GetGidMappings()) > 0
		if m.GetImage() == nil && !mapped {
			continue
		}
		if config == p.e.Config {
			config = proto.CloneOf(p.e.Config)
		}
		mount := config.Mounts[i]
		mount.UidMappings, mount.GidMappings = nil, nil
		if m.GetImage() == nil {
			path, err := p.mapOwners(i)
			if err != nil {
				return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
			}
			mount.HostPath = path
			continue
		}
		path, id, err := p.mountImage(ctx, i)
		if err != nil {
			return nil, &ImageMountError{Path: m.GetContainerPath(), Err: err}
		}
		images[m.GetContainerPath()] = id
		mount.HostPath, mount.Image, mount.ImageSubPath, mount.Readonly = path, nil, "", true
	}
	p.e.Rec.Volumes = images
	return config, nil
}

// ImageMountError is the error of an image that can't be mounted as a volume.
type ImageMountError struct {
	Path string // in the container
	Err  error
}

func (e *ImageMountError) Error() string { return fmt.Sprintf("mount %s: %v", e.Path, e.Err) }
func (e *ImageMountError) Unwrap() error { return e.Err }

// mountImage mounts the image of mount i. It returns the path of the image or of its part that the
// mount names, and the image's ID.
func (p *setup) mountImage(ctx context.Context, i int) (path, id string, err error) {
	m := p.e.Config.GetMounts()[i]
	switch {
	case m.GetImage().GetImage() == "":
		return "", "", errdefs.ErrInvalidArgument.WithMessage("the name of its image is empty")
	case m.GetHostPath() != "":
		return "", "", errdefs.ErrInvalidArgument.WithMessage("it has an image and a host_path: choose one")
	}
	image, err := p.e.s.cfg.Images.Image(ctx, m.GetImage().GetImage())
	if err != nil {
		return "", "", err
	}
	if err := p.e.hold(image.ID, p.holder()); err != nil {
		return "", "", err
	}
	root, err := p.e.s.cfg.Mounts.Mount(rootfs.Spec{Dir: filepath.Join(p.e.layer(), volumesDir, strconv.Itoa(i)), Lower: image.Lower, ReadOnly: true, Owner: p.sandbox.owner()})
	if err != nil || m.GetImageSubPath() == "" {
		return root, image.ID, err
	}
	path, err = inside(root, m.GetImageSubPath())
	return path, image.ID, err
}

// mapOwners mounts the source of mount i with the owners that the sandbox's user namespace maps,
// and returns the path. So the OCI runtime needn't support ID-mapped mounts.
func (p *setup) mapOwners(i int) (string, error) {
	m := p.e.Config.GetMounts()[i]
	user := userOptions(p.sandbox.Config)
	if user == nil || !sameIDs(m.GetUidMappings(), user.GetUids()) || !sameIDs(m.GetGidMappings(), user.GetGids()) {
		return "", errdefs.ErrInvalidArgument.WithMessage("uidMappings and gidMappings must be those of the pod's user namespace")
	}
	if m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
		return "", errdefs.ErrInvalidArgument.WithMessage("mounts in a user namespace don't propagate to the node: use another propagation than BIDIRECTIONAL")
	}
	info, err := os.Stat(m.GetHostPath())
	if err != nil {
		return "", err
	}
	at := rootfs.Path(filepath.Join(p.e.layer(), volumesDir, strconv.Itoa(i)))
	if err := userns.MakeDir(filepath.Dir(at), p.sandbox.owner().GID); err != nil {
		return "", err
	}
	if info.IsDir() {
		err = os.Mkdir(at, 0o700)
	} else {
		err = unix.Mknod(at, unix.S_IFREG|0o600, 0)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return at, userns.Mount(m.GetHostPath(), at, p.sandbox.Namespaces.User)
}

func sameIDs(a, b []*runtimeapi.IDMapping) bool {
	return slices.EqualFunc(a, b, func(a, b *runtimeapi.IDMapping) bool { return proto.Equal(a, b) })
}

// userOptions returns the options of the sandbox's own user namespace, or nil without one.
func userOptions(sandbox *runtimeapi.PodSandboxConfig) *runtimeapi.UserNamespace {
	user := sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if user == nil || user.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return user
}

// owner returns the owner of image files in the sandbox's user namespace, or nil without one.
func (s Sandbox) owner() *rootfs.Owner {
	user := userOptions(s.Config)
	if user == nil {
		return nil
	}
	return &rootfs.Owner{Namespace: s.Namespaces.User, UID: int(user.GetUids()[0].GetHostId()), GID: int(user.GetGids()[0].GetHostId())}
}

// inside returns the path of sub in an image. Symlinks are followed within the image.
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

// maxAccounts is how much is read of an image's passwd and group files.
const maxAccounts = 8 << 20

// readInside returns the content of a file of the image, or nil if it doesn't exist. Symlinks are
// followed within the image.
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
