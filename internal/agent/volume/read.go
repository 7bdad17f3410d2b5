package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

// maxEnvFile bounds the size of a file with variables, which a pod writes and huskd reads.
const maxEnvFile = 1 << 20

// ReadEnvFiles reads the files that a container's variables come from. paths are those of the
// volumes. Files that don't exist are left out.
func ReadEnvFiles(c *corev1.Container, paths map[string]string) (map[criconfig.EnvFile][]byte, error) {
	out := map[criconfig.EnvFile][]byte{}
	for _, f := range criconfig.EnvFiles(c) {
		content, err := ReadFile(paths[f.Volume], f.Path, maxEnvFile)
		switch {
		case err == nil:
			out[f] = content
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("container %q: volume %s: %w", c.Name, f.Volume, err)
		}
	}
	return out, nil
}

// ReadFile returns the content of a file that a pod has written to a volume. Links never lead out
// of the volume, and a file that isn't regular or is larger than most bytes is an error.
func ReadFile(volume, path string, most int64) ([]byte, error) {
	root, err := unix.Open(volume, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", volume, err)
	}
	defer unix.Close(root)
	// O_NONBLOCK: the file may be a FIFO without a writer.
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: resolveBeneath})
	if errors.Is(err, unix.EXDEV) {
		err = errEscapes
	}
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("file %s is not a regular file", path)
	}
	content, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", path, err)
	}
	if int64(len(content)) > most {
		return nil, fmt.Errorf("file %s is larger than %d bytes", path, most)
	}
	return content, nil
}
