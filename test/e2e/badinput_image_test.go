package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/huskd/husk/test/node"
)

// TestBadImage loads and pulls images that are malformed, truncated or missing.
func TestBadImage(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	whole := []byte(aliceArchive(t))
	// The middle of the archive is in its only large layer.
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 0xff
	if err := os.Mkdir(filepath.Join(w.Dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := func(name string, data []byte) string { return write(t, w.Node, name, string(data)) }
	before := w.MustHusk("image", "ls")
	for _, c := range []struct {
		path string
		line string
	}{
		{filepath.Join(w.Dir, "missing.tar"), `husk: .*/missing.tar: no such file or directory`},
		{filepath.Join(w.Dir, "dir"), `husk: .*/dir is a directory: pack it first, as in tar -C .*`},
		{file("empty.tar", nil), `husk: image archive: it is neither an OCI image layout nor a docker save archive .*`},
		{file("rubbish.tar", bytes.Repeat([]byte("rubbish "), 1000)), `husk: image archive: it is neither an OCI image layout nor a docker save archive .*`},
		{file("short.tar", whole[:len(whole)/2]), `husk: image archive: it is truncated: save or copy it again`},
		{file("flipped.tar", flipped), `husk: .*`},
		{file("zeros.tar", make([]byte, 1<<20)), `husk: image archive: it is neither an OCI image layout nor a docker save archive .*`},
	} {
		r := w.Husk("image", "load", c.path)
		w.fails(filepath.Base(c.path), node.Result{Stderr: lastLine(r.Stderr), Code: r.Code}, 1, c.line)
	}
	for name, line := range map[string]string{
		"127.0.0.1:1/absent:1":    `husk: .*127.0.0.1:1/absent:1.*registry 127.0.0.1:1 can't be reached: .*connection refused`,
		"Not A Name!":             `husk: .*image name "Not A Name!" is malformed: .*`,
		"127.0.0.1:1/x@sha256:12": `husk: image name "127.0.0.1:1/x@sha256:12" is malformed: .*`,
	} {
		r := w.Husk("image", "pull", name)
		w.fails("pull "+name, node.Result{Stderr: lastLine(r.Stderr), Code: r.Code}, 1, line)
	}
	if after := w.MustHusk("image", "ls"); after != before {
		t.Errorf("the images have changed from\n%sto\n%s", before, after)
	}
	w.checkUnharmed("bad images")
	w.end()
}
