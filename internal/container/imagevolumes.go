package container

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// makeImageVolumes creates the directories that the image declares as volumes, unless its layers
// have them: builders declare a volume without creating its directory. Those that it creates belong
// to the container's user. It returns the path in the mounted root file system of each, by its path
// in the container. A volume of which the image has a file is left out.
func (p *setup) makeImageVolumes(user specs.User) (map[string]string, error) {
	volumes := map[string]string{}
	for _, declared := range slices.Sorted(maps.Keys(p.image.Config.Volumes)) {
		at := path.Clean("/" + declared)
		if at == "/" {
			continue
		}
		source, err := p.makeDirectory(at, user)
		switch {
		case errors.Is(err, unix.ENOTDIR):
			p.e.Log().Info(fmt.Sprintf("container: the volume %s of image %s is not a directory", at, p.image.Name))
			continue
		case err != nil:
			return nil, fmt.Errorf("volume %s of image %s: %w", at, p.image.Name, err)
		}
		volumes[at] = source
	}
	return volumes, nil
}

// makeDirectory creates a directory of the root file system, and the parents that don't exist, for
// a user of the container. It returns the directory's path on the host. Symlinks are followed
// within the root file system.
func (p *setup) makeDirectory(name string, user specs.User) (string, error) {
	root, err := os.OpenFile(p.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer root.Close()
	source, at := p.root, ""
	for element := range strings.SplitSeq(name[1:], "/") {
		at += "/" + element
		if source, err = p.makeElement(root, at, user); err != nil {
			return "", err
		}
	}
	return source, nil
}

func (p *setup) makeElement(root *os.File, name string, user specs.User) (string, error) {
	dir, err := pathrs.OpenatInRoot(root, name)
	if errors.Is(err, os.ErrNotExist) {
		if dir, err = pathrs.MkdirAllHandle(root, name, 0o755); err == nil {
			err = p.give(dir, user)
		}
	}
	if dir != nil {
		defer dir.Close()
	}
	if err != nil {
		return "", err
	}
	if info, err := dir.Stat(); err != nil || !info.IsDir() {
		return "", errors.Join(err, unix.ENOTDIR)
	}
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
}

// give makes a user of the container the owner of a file.
func (p *setup) give(file *os.File, user specs.User) error {
	uid, gid := int(user.UID), int(user.GID)
	if owner := p.sandbox.owner(); owner != nil {
		uid, gid = uid+owner.UID, gid+owner.GID
	}
	return unix.Fchownat(int(file.Fd()), "", uid, gid, unix.AT_EMPTY_PATH)
}
