package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// Images that no pod uses.
const (
	unused = "localhost/unused:1"
	pinned = "localhost/pinned:1"
)

// TestImageGC makes the kubelet remove unused images, because of their age and because the disk is
// full. It must not remove images that pods use or that huskd reports as pinned.
func TestImageGC(t *testing.T) {
	m := newMachine(t)
	m.huskd.Stop()
	m.huskd = m.Huskd(node.Flags("--pinned-images", "localhost/pinned:*", "--image-gc-high", "100"))
	m.loadUnused()

	// The kubelet checks for old images every five minutes, which isn't configurable.
	m.reclaim = roomy + "\nimageMinimumGCAge: 1s\nimageMaximumGCAge: 1m"
	m.startKubelet()
	m.write("manifests/full.yaml", full)
	before := m.eventually("full-node", ready)
	m.awaitImages(7*time.Minute, pinned, image, another)
	m.awaitCollected("age", 1)
	m.checkUnchanged(before)

	// No disk has as much free space as this demands. The kubelet doesn't evict the pod for it, as
	// it is a critical one.
	m.loadUnused()
	m.kubelet.stop()
	m.reclaim = "imageGCHighThresholdPercent: 100\nimageMinimumGCAge: 1s\nevictionHard: {imagefs.available: 99%}"
	m.startKubelet()
	m.awaitImages(3*time.Minute, pinned, image, another)
	m.awaitCollected("space", 1)
	m.checkUnchanged(before)

	m.Must("rm", m.Dir+"/manifests/full.yaml")
	m.awaitImages(3*time.Minute, pinned)
	m.awaitCollected("space", 2)
	m.end()
}

// loadUnused loads the images that no pod uses.
func (m *machine) loadUnused() {
	m.t.Helper()
	var images []testimage.Named
	for i, name := range []string{unused, pinned} {
		built, err := testimage.Build(m.t.Context(), testimage.Spec{Layers: 2 + i})
		if err != nil {
			m.t.Fatal(err)
		}
		images = append(images, testimage.Named{Image: built, Names: []string{name}})
	}
	var archive bytes.Buffer
	if err := testimage.WriteArchive(&archive, images...); err != nil {
		m.t.Fatal(err)
	}
	m.MustHusk("image", "load", m.write("unused.tar", archive.String()))
	m.awaitImages(time.Minute, pinned, unused, image, another)
}

// awaitImages waits until huskd has exactly these images, sorted by name.
func (m *machine) awaitImages(within time.Duration, names ...string) {
	m.t.Helper()
	node.Eventually(m.t, within, func() string {
		m.kubelet.mustRun()
		var got []string
		var images []struct{ Tags []string }
		if err := json.Unmarshal([]byte(m.MustHusk("image", "ls", "-o", "json")), &images); err != nil {
			m.t.Fatal(err)
		}
		for _, i := range images {
			got = append(got, i.Tags...)
		}
		if slices.Sort(got); !slices.Equal(got, names) {
			return fmt.Sprintf("the images are %v, not %v", got, names)
		}
		return ""
	})
}

// awaitCollected waits until the kubelet has removed this number of images for a reason.
func (m *machine) awaitCollected(reason string, times int) {
	m.t.Helper()
	want := fmt.Sprintf("\nkubelet_image_garbage_collected_total{reason=%q} %d\n", reason, times)
	node.Eventually(m.t, time.Minute, func() string {
		if metrics, err := m.get("https://127.0.0.1:10250/metrics"); err != nil || !strings.Contains(metrics, want) {
			return fmt.Sprintf("the kubelet's metrics lack %s: %v", strings.TrimSpace(want), err)
		}
		return ""
	})
}
