package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/image/rootfs"
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

// volumes mounts the images that a container has beside its own.
type volumes struct {
	*box
	sandbox *runtimeapi.PodSandboxConfig
}

// mount mounts the images that the config's mounts name, and returns
// the config with the paths where they are in their place.
func (b volumes) mount(ctx context.Context) (*runtimeapi.ContainerConfig, error) {
	config := b.config
	found := map[string]string{}
	for i, m := range b.config.GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		if len(found) == 0 {
			config = proto.CloneOf(b.config)
		}
		path, id, err := b.mountOne(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
		}
		found[m.GetContainerPath()] = id
		mount := config.Mounts[i]
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
	if err := b.hold(image.ID, b.holder(b.sandbox)); err != nil {
		return "", "", err
	}
	root, err := rootfs.Mount(rootfs.Spec{Dir: filepath.Join(b.layer(), volumesDir, strconv.Itoa(i)), Lower: image.Lower, ReadOnly: true})
	if err != nil || m.GetImageSubPath() == "" {
		return root, image.ID, err
	}
	path, err = inside(root, m.GetImageSubPath())
	return path, image.ID, err
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
func unmountAll(dir string) error {
	mounted, _ := filepath.Glob(filepath.Join(dir, volumesDir, "*"))
	var errs []error
	for _, volume := range mounted {
		errs = append(errs, rootfs.Unmount(volume))
	}
	return errors.Join(append(errs, rootfs.Unmount(dir))...)
}
