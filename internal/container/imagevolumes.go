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
	"golang.org/x/sys/unix"
)

// makeImageVolumes creates the directories that the image declares as volumes, unless its layers
// have them: builders declare a volume without creating its directory. It returns the path in the
// mounted root file system of each, by its path in the container. A volume of which the image has a
// file is left out.
func (p *setup) makeImageVolumes() (map[string]string, error) {
	volumes := map[string]string{}
	for _, declared := range slices.Sorted(maps.Keys(p.image.Config.Volumes)) {
		at := path.Clean("/" + declared)
		if at == "/" {
			continue
		}
		source, err := p.makeDirectory(at)
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

// makeDirectory creates a directory of the root file system and its parents, which belong to the
// container's root user. It returns the directory's path on the host. Symlinks are followed within
// the root file system.
func (p *setup) makeDirectory(name string) (string, error) {
	root, err := os.OpenFile(p.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer root.Close()
	source, at := p.root, ""
	for element := range strings.SplitSeq(name[1:], "/") {
		at += "/" + element
		if source, err = p.makeElement(root, at); err != nil {
			return "", err
		}
	}
	return source, nil
}

func (p *setup) makeElement(root *os.File, name string) (string, error) {
	dir, err := pathrs.OpenatInRoot(root, name)
	if errors.Is(err, os.ErrNotExist) {
		if dir, err = pathrs.MkdirAllHandle(root, name, 0o755); err == nil {
			err = p.giveToRoot(dir)
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

// giveToRoot makes the root user of the container's user namespace, if it has one, the owner.
func (p *setup) giveToRoot(dir *os.File) error {
	owner := p.sandbox.owner()
	if owner == nil {
		return nil
	}
	return unix.Fchownat(int(dir.Fd()), "", owner.UID, owner.GID, unix.AT_EMPTY_PATH)
}
