//go:build vm

package guest

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// counting is a script that counts in a shell variable, writes the numbers to its log and changes
// its files.
const counting = `echo mine > /made; rm -r /etc/group; i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done`

// of creates the container from another image or from a checkpoint's archive.
func of(image string) func(*runtimeapi.ContainerConfig) {
	return func(k *runtimeapi.ContainerConfig) { k.Image.Image = image }
}

func logOf(config *runtimeapi.PodSandboxConfig) string {
	return filepath.Join(config.GetLogDirectory(), "counter.log")
}

// counted returns the numbers in a log.
func counted(log string) (list []int) {
	content, _ := os.ReadFile(log)
	for line := range strings.Lines(string(content)) {
		if _, said, ok := strings.Cut(line, " stdout F "); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(said)); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

// counts waits until a log has more numbers than before.
func counts(t *testing.T, log string, before int) []int {
	t.Helper()
	var list []int
	node.Eventually(t, 60*time.Second, func() string {
		if list = counted(log); len(list) <= before {
			return fmt.Sprintf("%s has %d numbers", log, len(list))
		}
		return ""
	})
	return list
}

// TestCheckpoint checkpoints a running container and restores containers from the checkpoint.
func TestCheckpoint(t *testing.T) {
	only(t, "runc")
	n := node.New(t)
	d := n.Huskd()
	n.MustHusk("image", "load", "/web.tar")
	c := dial(t, n.Socket(), n.Dir)
	pod, config := c.sandbox("first", "")
	id, err := c.create(pod, config, counting)
	c.must(err)
	log := logOf(config)
	c.start(id)
	counts(t, log, 3)
	archive := filepath.Join(n.Dir, "checkpoint.tar")
	_, err = c.CheckpointContainer(c.ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: archive, Timeout: 120})
	c.must(err)
	at := counted(log)
	checkArchive(t, n.Path(archive))
	counts(t, log, len(at)) // it goes on
	c.remove(pod)
	_, err = c.CheckpointContainer(c.ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: archive})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a checkpoint of a container that is gone: %v", err)
	}

	pod, config = c.sandbox("untrusted", "")
	_, err = c.create(pod, config, counting, of(archive))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(status.Convert(err).Message(), "restore-checkpoints") {
		t.Errorf("a restore that nobody allowed: %v", err)
	}
	c.remove(pod)
	d.Stop()
	d = n.Huskd(node.Flags("--restore-checkpoints"))

	load(t, n, archive)
	for image, from := range map[string]string{"archive": archive, "image": "localhost/checkpoint:1"} {
		pod, config := c.sandbox(image, "")
		id, err := c.create(pod, config, counting, of(from))
		c.must(err)
		log := logOf(config)
		if early := counted(log); len(early) > 0 {
			t.Errorf("of an %s: it counts before it is started: %v", image, early)
		}
		c.start(id)
		list := counts(t, log, 2)
		if list[0] < 3 || list[0] > at[len(at)-1]+1 || !slices.IsSorted(list) {
			t.Errorf("of an %s: it goes on with %v, and the checkpoint was made at about %d", image, list, at[len(at)-1])
		}
		r, err := c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "cat /made; ls /etc/group"}})
		if string(r.GetStdout()) != "mine\n" || err != nil {
			t.Errorf("of an %s: its files are not as they were: %q %q %v", image, r.GetStdout(), r.GetStderr(), err)
		}
		c.remove(pod)
	}
	d.Stop()
	n.NothingLeft()
}

// checkArchive looks for the files that other tools need.
func checkArchive(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive's mode is %v: what a process had in memory is nobody's business", info.Mode())
	}
	var names []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	for _, name := range []string{"config.dump", "spec.dump", "rootfs-diff.tar", "checkpoint/inventory.img"} {
		if !slices.Contains(names, name) {
			t.Errorf("no %s among %v", name, names)
		}
	}
}

// load makes an image from an archive, as buildah does, and loads it.
func load(t *testing.T, n *node.Node, archive string) {
	t.Helper()
	layer, err := tarball.LayerFromFile(n.Path(archive))
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture = "linux", runtime.GOARCH
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("localhost/checkpoint:1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.Dir, "image.tar")
	if err := tarball.WriteToFile(n.Path(path), tag, image); err != nil {
		t.Fatal(err)
	}
	n.MustHusk("image", "load", path)
}
