// Command bench compares huskd with containerd on a machine made of namespaces: both use the same
// OCI runtime, image and kernel, and containerd has the CNI network that is usual for it. For
// Services, it compares huskd with kube-proxy. It prints the figures that have goals and writes
// them to docs/performance.md.
//
// Run it with make bench from the top of the repository. It leaves only containerd's programs and
// the reports, in out/bench.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/test/testimage"
)

// plan is what to measure. It is passed to the processes on the machine.
type plan struct {
	Dir    string // holds everything that the run creates
	Bin    string // directory of husk and huskd
	Peers  string // directory of containerd's programs
	Out    string // directory of the reports
	Page   string // document to update
	Rounds int    // samples of sequential operations
	Batch  int    // pods in a batch
}

func main() {
	var err error
	switch os.Getenv(stage) {
	case stageInit:
		err = runInit()
	case stageMeasure:
		err = measure()
	default:
		err = begin()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func begin() error {
	p := plan{Out: "out/bench"}
	flag.StringVar(&p.Bin, "bin", "bin", "directory of husk and huskd")
	flag.StringVar(&p.Page, "page", "docs/performance.md", "document to write the table into")
	flag.IntVar(&p.Rounds, "n", 30, "samples of sequential operations")
	flag.IntVar(&p.Batch, "pods", 100, "pods in a batch")
	flag.Parse()
	if os.Geteuid() != 0 {
		return errors.New("namespaces and mounts need root: run this as root")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return run(ctx, p)
}

func run(ctx context.Context, p plan) (err error) {
	for _, path := range []*string{&p.Bin, &p.Out, &p.Page} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	p.Peers = filepath.Join(p.Out, "bin")
	if err := buildPeers(ctx, p.Peers); err != nil {
		return err
	}
	if err := buildKubeProxy(ctx, p.Peers); err != nil {
		return err
	}
	if p.Dir, err = os.MkdirTemp("", "husk-peers-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.Dir)) }()
	if err := writeImages(ctx, p.Dir); err != nil {
		return err
	}
	undo, err := mountPoints()
	if err != nil {
		return err
	}
	defer undo()
	defer sweepCgroups(p, cgroupRoots())
	return boot(ctx, p)
}

// version is the version of containerd.
const version = "v2.4.2"

// buildPeers builds containerd from its module, unless it was built before.
func buildPeers(ctx context.Context, dir string) error {
	const module = "github.com/containerd/containerd/v2/cmd/"
	var missing []string
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			missing = append(missing, module+name+"@"+version)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	fmt.Fprintf(os.Stderr, "building containerd %s, which takes a few minutes\n", version)
	args := append([]string{"install", "-trimpath", "-ldflags", "-s -w -X github.com/containerd/containerd/v2/version.Version=" + version}, missing...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = os.TempDir() // outside of any module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build containerd: %w\n%s", err, out)
	}
	return nil
}

// The images: a web server for both, and the pause process of containerd's pods.
const (
	webImage   = "localhost/web:1"
	pauseImage = "localhost/pause:1"
)

func writeImages(ctx context.Context, dir string) error {
	web, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web})
	if err != nil {
		return err
	}
	pause, err := newPauseImage()
	if err != nil {
		return err
	}
	for name, image := range map[string]testimage.Named{
		"web.tar":   {Image: web, Names: []string{webImage}},
		"pause.tar": {Image: pause, Names: []string{pauseImage}},
	} {
		if err := writeImage(filepath.Join(dir, name), image); err != nil {
			return err
		}
	}
	return nil
}

func writeImage(path string, image testimage.Named) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(testimage.WriteArchive(f, image), f.Close())
}

// instances are the huskds, each with another OCI runtime.
var instances = []string{"husk", "husk-crun"}

// rootOf returns the root directory of an instance.
func (p plan) rootOf(name string) string { return filepath.Join(p.Dir, name) }

// cgroupRoots returns the cgroups that daemons on the machine will create and that don't exist yet.
func cgroupRoots() (absent []string) {
	for _, path := range k8sCgroups() {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			absent = append(absent, path)
		}
	}
	return absent
}

// k8sCgroups returns where containerd creates pods without a cgroup parent.
func k8sCgroups() []string {
	const base = "/sys/fs/cgroup"
	paths := []string{base + "/k8s.io"}
	hierarchies, _ := filepath.Glob(base + "/*/tasks")
	for _, h := range hierarchies {
		paths = append(paths, filepath.Join(filepath.Dir(h), "k8s.io"))
	}
	return paths
}

// sweepCgroups removes the cgroups of daemons that were killed with their machine.
func sweepCgroups(p plan, roots []string) {
	for _, name := range instances {
		cgroup := pod.InstanceOf(p.rootOf(name)).Cgroup()
		found, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
		roots = append(roots, append(found, "/sys/fs/cgroup"+cgroup)...)
	}
	for _, root := range roots {
		removeCgroups(root)
	}
}

func init() {
	// The kernel sends Pdeathsig when the thread that forked exits. This is the main thread, which
	// exits with the process.
	runtime.LockOSThread()
}
