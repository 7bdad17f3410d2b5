package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var (
	// kernelDirs have files of the kernel, by which the runtime confines the container.
	kernelDirs = []string{"/dev", "/proc", "/sys"}
	// devices are what the runtime makes in /dev, and mounts elsewhere. Who can replace them chooses
	// what it mounts (CVE-2025-31133, CVE-2025-52565).
	devices = []string{"/dev", "/dev/null", "/dev/console", "/dev/ptmx", "/dev/pts"}
	// procFiles are the files of /proc over which runc allows mounts, for LXCFS.
	procFiles = []string{"cpuinfo", "diskstats", "loadavg", "meminfo", "net/dev", "slabinfo", "stat", "swaps", "sys/crypto/fips_enabled", "sys/kernel/ns_last_pid", "uptime"}
	// magicDirs hold links of the kernel's, which lead out of the root file system (CVE-2024-21626).
	magicDirs = regexp.MustCompile(`^/proc/([0-9]+|self|thread-self)/.`)
)

// checkTargets checks where the runtime will mount and make devices, and the working directory. It
// follows the links of the image and of the volumes within the container, as the runtime should.
// Runtimes have followed them to the node: runc before 1.2 makes the devices and links in /dev
// before it changes the root. No process can change the root file system yet. Other containers can
// change a volume that they share meanwhile: against that the runtime has checks of its own.
func checkTargets(root, image string, s *specs.Spec) error {
	t := targets{root: root}
	refuse := func(format string, args ...any) error {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("image %s: ", image) + fmt.Sprintf(format, args...))
	}
	check := func(what, wanted string) (string, error) {
		at, err := t.resolve(wanted)
		switch {
		case err != nil:
			return "", refuse("%s %s: %v", what, wanted, err)
		case at == wanted:
		case slices.Contains(kernelDirs, wanted):
			return "", refuse("%s is a symbolic link, which a runtime may follow out of the image: use an image in which it is a directory", wanted)
		case at == "/", isWithin(at, kernelDirs...):
			return "", refuse("%s %s leads to %s by a symbolic link: use an image and volumes without that link", what, wanted, at)
		}
		return at, nil
	}
	for _, m := range s.Mounts {
		at, err := check("mount", path.Clean("/"+m.Destination))
		if err != nil {
			return err
		}
		if slices.Contains(kernelDirs, at) {
			if info, err := t.Lstat(filepath.Join(root, at)); err == nil && !info.IsDir() {
				return refuse("%s is not a directory", at)
			}
		}
		source := ""
		if m.Type == "bind" {
			if source, err = filepath.EvalSymlinks(m.Source); err != nil {
				source = m.Source // the runtime reports it
			}
			if err := checkSource(at, source); err != nil {
				return err
			}
		}
		t.mounts = append(t.mounts, target{at, source})
	}
	for _, d := range s.Linux.Devices {
		if _, err := check("device", path.Clean("/"+d.Path)); err != nil {
			return err
		}
	}
	if _, err := t.resolve(s.Process.Cwd); errors.Is(err, errMagic) {
		return refuse("working directory %s: %v: use another", s.Process.Cwd, err)
	}
	return nil
}

// checkSource refuses to mount files of a volume where the runtime relies on files of the kernel.
func checkSource(at, source string) error {
	var st unix.Statfs_t
	name, inProc := strings.CutPrefix(at, "/proc/")
	switch {
	case slices.Contains(devices, at) && !isWithin(source, "/dev"):
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("mount %s: the runtime relies on it, so only /dev of the node can be mounted there: use another mountPath", at))
	case (inProc && !slices.Contains(procFiles, name) || at == "/proc") && unix.Statfs(source, &st) == nil && st.Type != unix.PROC_SUPER_MAGIC:
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("mount %s: the runtime relies on it, so only /proc can be mounted there: use another mountPath", at))
	}
	return nil
}

// isWithin reports whether a path is that of a directory or of a file below it.
func isWithin(name string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(name+"/", dir+"/") })
}

// targets resolves paths of a container that doesn't exist yet: in its root file system and in what
// is mounted there, in the order of the mounts.
type targets struct {
	root   string
	mounts []target
	magic  bool // the path that is being resolved is in magicDirs
}

var errMagic = errors.New("it leads through a directory of a process in /proc, and so perhaps out of the container")

// target is where something is mounted.
type target struct {
	at     string // in the container
	source string // on the node; empty for a new file system
}

// resolve returns the path in the container to which a path leads. Elements that don't exist are
// kept: the runtime makes them.
func (t *targets) resolve(name string) (string, error) {
	t.magic = false
	full, err := securejoin.SecureJoinVFS(t.root, name, t)
	if err == nil && t.magic {
		err = errMagic
	}
	if err != nil {
		if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
			err = inner.Err
		}
		return "", err
	}
	return path.Join("/", strings.TrimPrefix(full, filepath.Clean(t.root))), nil
}

// onNode returns the path on the node of a file below root; false if it is in a new file system.
func (t *targets) onNode(full string) (string, bool) {
	name := path.Join("/", strings.TrimPrefix(full, filepath.Clean(t.root)))
	t.magic = t.magic || magicDirs.MatchString(name)
	on, length := full, 0
	for _, m := range t.mounts {
		if len(m.at) >= length && isWithin(name, m.at) {
			on, length = "", len(m.at)
			if m.source != "" {
				on = filepath.Join(m.source, name[len(m.at):])
			}
		}
	}
	return on, on != ""
}

// Lstat implements securejoin.VFS.
func (t *targets) Lstat(full string) (os.FileInfo, error) {
	on, ok := t.onNode(full)
	if !ok {
		return nil, &fs.PathError{Op: "lstat", Path: full, Err: fs.ErrNotExist}
	}
	return os.Lstat(on)
}

// Readlink implements securejoin.VFS.
func (t *targets) Readlink(full string) (string, error) {
	on, ok := t.onNode(full)
	if !ok {
		return "", &fs.PathError{Op: "readlink", Path: full, Err: fs.ErrNotExist}
	}
	return os.Readlink(on)
}
