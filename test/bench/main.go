// Command bench measures huskd beside containerd, on a machine made of
// namespaces: the same OCI runtime, image and kernel for both, and the CNI
// network that containerd usually has for it. It prints the figures that Husk
// wants to reach, and writes them into docs/performance.md.
//
// It is run from the top of the repository, by make bench. Of what it makes only
// containerd's programs stay, in out/bench, and the reports beside them.
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

// plan is what to measure, told to the process on the machine.
type plan struct {
	Dir    string // of everything that the run makes
	Bin    string // husk and huskd
	Peers  string // containerd's programs
	Out    string // where reports go
	Page   string // the document
	Rounds int    // samples of what comes one by one
	Batch  int    // pods that there are at a time
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
	flag.IntVar(&p.Rounds, "n", 30, "samples of what comes one by one")
	flag.IntVar(&p.Batch, "pods", 100, "pods that there are at a time")
	flag.Parse()
	if os.Geteuid() != 0 {
		return errors.New("namespaces and mounts need root: run it as root")
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

// version of containerd that is measured.
const version = "v2.4.2"

// buildPeers builds containerd out of its module, unless that was done before.
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
	fmt.Fprintf(os.Stderr, "building containerd %s, which takes some minutes\n", version)
	args := append([]string{"install", "-trimpath", "-ldflags", "-s -w -X github.com/containerd/containerd/v2/version.Version=" + version}, missing...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = os.TempDir() // not in a module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build containerd: %w\n%s", err, out)
	}
	return nil
}

// The images: a web server that both run, and the first process of containerd's pods.
const (
	webImage   = "localhost/web:1"
	pauseImage = "localhost/pause:1"
)

func writeImages(ctx context.Context, dir string) error {
	web, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web})
	if err != nil {
		return err
	}
	pause, err := pauseOf()
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

// instances are the huskds, each measured with another OCI runtime.
var instances = []string{"husk", "husk-crun"}

// rootOf is the root directory of one of them.
func (p plan) rootOf(name string) string { return filepath.Join(p.Dir, name) }

// cgroupRoots are those that daemons on the machine make and that are not there yet.
func cgroupRoots() (absent []string) {
	for _, path := range k8sCgroups() {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			absent = append(absent, path)
		}
	}
	return absent
}

// k8sCgroups are where containerd puts pods that name no cgroup.
func k8sCgroups() []string {
	const base = "/sys/fs/cgroup"
	paths := []string{base + "/k8s.io"}
	hierarchies, _ := filepath.Glob(base + "/*/tasks")
	for _, h := range hierarchies {
		paths = append(paths, filepath.Join(filepath.Dir(h), "k8s.io"))
	}
	return paths
}

// sweepCgroups removes what is left of the cgroups of daemons that were killed
// with their machine.
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
	// The kernel sends Pdeathsig when the thread ends that forked: it is the
	// main one, which ends with the process.
	runtime.LockOSThread()
}
