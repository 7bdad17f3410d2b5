package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/testimage"
)

// hostileImage is an image with links where the runtime makes devices, mounts or directories.
type hostileImage struct {
	name    string
	entries []testimage.Entry
	workdir string
	// volumes are where the container wants volumes: the first is empty, and the second has links
	// that another container made.
	volumes []string
	// refused is a part of the error. If it is empty, the container may run.
	refused string
	runs    bool
}

// TestHostileImage runs images that would lead a runtime out of the root file system by links: runc
// before 1.2 makes devices and links in /dev before it changes the root. Nothing changes on the
// node, and an image that can't be run safely is refused by name.
func TestHostileImage(t *testing.T) {
	t.Parallel()
	c := startHandlers(t)
	host := filepath.Join(c.Dir, "host")
	up := strings.Repeat("../", 12)
	cases := []hostileImage{
		{name: "dev", entries: []testimage.Entry{testimage.Symlink("dev", host)}, refused: "/dev is a symbolic link"},
		{name: "dev-up", entries: []testimage.Entry{testimage.Symlink("dev", up+host)}, refused: "/dev is a symbolic link"},
		{name: "dev-inside", entries: []testimage.Entry{testimage.Symlink("dev", "/tmp")}, refused: "/dev is a symbolic link"},
		{name: "dev-file", entries: []testimage.Entry{testimage.File("dev", 0o644, nil)}, refused: "/dev is not a directory"},
		{name: "proc", entries: []testimage.Entry{testimage.Symlink("proc", up+host)}, refused: "/proc is a symbolic link"},
		{name: "sys", entries: []testimage.Entry{testimage.Symlink("sys", up+host)}, refused: "/sys is a symbolic link"},
		{name: "below-dev", entries: []testimage.Entry{testimage.Symlink("dev/pts", up+host), testimage.Symlink("dev/shm", host), testimage.Symlink("dev/mqueue", host), testimage.Symlink("dev/console", host+"/console"), testimage.Symlink("dev/null", host+"/null")}},
		{name: "etc", entries: []testimage.Entry{testimage.Symlink("etc", up+host)}},
		{name: "etc-proc", entries: []testimage.Entry{testimage.Symlink("etc", "proc/self/cwd")}, refused: "leads through a directory of a process"},
		{name: "hosts", entries: []testimage.Entry{testimage.Symlink("etc/hosts", up+host+"/hosts"), testimage.Symlink("etc/resolv.conf", host+"/none/resolv.conf")}},
		{name: "loop", entries: []testimage.Entry{testimage.Symlink("etc/hosts", "hosts")}, refused: "too many levels of symbolic links"},
		{name: "volume", entries: []testimage.Entry{testimage.Symlink("data", up+host)}, volumes: []string{"/data/new"}},
		{name: "volume-proc", entries: []testimage.Entry{testimage.Symlink("data", "/proc")}, volumes: []string{"/data"}, refused: "leads to /proc"},
		{name: "volume-sys", entries: []testimage.Entry{testimage.Symlink("data", "sys/kernel")}, volumes: []string{"/data/new"}, refused: "leads to /sys"},
		{name: "volume-dev", entries: []testimage.Entry{testimage.Symlink("data", "dev")}, volumes: []string{"/data"}, refused: "leads to /dev"},
		{name: "volume-root", entries: []testimage.Entry{testimage.Symlink("data", ".")}, volumes: []string{"/data"}, refused: "leads to /"},
		{name: "volume-twice", volumes: []string{"/v/inside/new", "/v"}, runs: true},
		{name: "volume-twice-proc", volumes: []string{"/v/proc", "/v"}, refused: "leads to /proc"},
		{name: "volume-twice-up", volumes: []string{"/v/up", "/v"}, refused: "leads to /"},
		{name: "volume-at-dev", volumes: []string{"/none", "/dev"}, refused: "mount /dev: the runtime relies on it"},
		{name: "volume-at-null", volumes: []string{"/dev/null"}, refused: "mount /dev/null: the runtime relies on it"},
		{name: "volume-at-proc", volumes: []string{"/proc"}, refused: "mount /proc: the runtime relies on it"},
		{name: "volume-in-proc", volumes: []string{"/proc/self/attr"}, refused: "mount /proc/self/attr: it leads through a directory of a process"},
		{name: "volume-in-sysctl", volumes: []string{"/proc/sys/kernel"}, refused: "mount /proc/sys/kernel: the runtime relies on it"},
		{name: "workdir", workdir: "/proc/self/fd/7", refused: "leads through a directory of a process"},
		{name: "workdir-link", entries: []testimage.Entry{testimage.Symlink("work", "/proc/self/fd")}, workdir: "/work/7", refused: "leads through a directory of a process"},
		{name: "ordinary", entries: []testimage.Entry{testimage.Dir("run", 0o755), testimage.Symlink("var/run", "/run"), testimage.File("run/resolv.conf", 0o644, nil), testimage.Symlink("etc/resolv.conf", "../run/resolv.conf")}, volumes: []string{"/var/run/secrets"}, runs: true},
	}
	base, err := testimage.Build(t.Context(), testimage.Spec{Flavour: testimage.Users})
	c.must(err)
	var images []testimage.Named
	for _, k := range cases {
		layer, err := testimage.NewLayer(testimage.Gzip, k.entries...)
		c.must(err)
		image, err := testimage.New(ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, ocispec.ImageConfig{WorkingDir: k.workdir}, append(base.Layers[:1:1], layer)...)
		c.must(err)
		images = append(images, testimage.Named{Image: image, Names: []string{"localhost/" + k.name + ":1"}})
	}
	archive, err := os.Create(filepath.Join(c.Dir, "hostile.tar"))
	c.must(err)
	c.must(testimage.WriteArchive(archive, images...))
	c.must(archive.Close())
	c.MustHusk("image", "load", archive.Name())

	// What a runtime that follows the links would change or remove.
	c.must(os.MkdirAll(filepath.Join(host, "pts"), 0o755))
	for _, name := range []string{"ptmx", "hosts", "null", "pts/0"} {
		c.must(os.WriteFile(filepath.Join(host, name), []byte("of the node"), 0o644))
	}
	find := func() string { return c.Must("find", host, "-printf", "%p %y %m %l %s %i %C@\n") }
	before := find()
	volumes := []string{filepath.Join(c.Dir, "empty"), filepath.Join(c.Dir, "linked")}
	for _, dir := range volumes {
		c.must(os.MkdirAll(filepath.Join(dir, "real"), 0o755))
	}
	for name, to := range map[string]string{"proc": "/proc", "up": up, "inside": "real", "null": "/proc/sys/kernel/core_pattern", "pts": host} {
		c.must(os.Symlink(to, filepath.Join(volumes[1], name)))
	}
	for handler, program := range map[string]string{"steady": "runc", "crun": "crun"} {
		pod, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(), RuntimeHandler: handler})
		c.must(err)
		for _, k := range cases {
			image := "localhost/" + k.name + ":1"
			err := c.try(pod.GetPodSandboxId(), image, "true", func(config *runtimeapi.ContainerConfig) {
				for i, path := range k.volumes {
					config.Mounts = append(config.Mounts, &runtimeapi.Mount{HostPath: volumes[i], ContainerPath: path})
				}
			})
			switch {
			case k.runs && err != nil:
				t.Errorf("%s: image %s: %v", program, k.name, err)
			case k.refused != "" && (err == nil || !strings.Contains(err.Error(), k.refused) || k.entries != nil && !strings.Contains(err.Error(), image)):
				t.Errorf("%s: image %s: error %v, want one that says %q, and the image if that is to blame", program, k.name, err, k.refused)
			}
			if after := find(); after != before {
				t.Errorf("%s: image %s changes files of the node:\n%s\nbefore:\n%s", program, k.name, after, before)
				before = after
			}
		}
	}
	c.end()
}

// try creates and starts a container of an image, and returns the first error.
func (c *criNode) try(pod, image, script string, change ...func(*runtimeapi.ContainerConfig)) error {
	config := c.containerConfig(script, change...)
	config.Image.Image = image
	r, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config})
	if err == nil {
		_, err = c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: r.GetContainerId()})
	}
	return err
}
