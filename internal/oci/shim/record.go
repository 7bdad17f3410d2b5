package shim

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/record"
)

// entry is what is known of a container. It is on disk before the first process
// is started, and again after each that is.
type entry struct {
	record.Container
	Handler Handler `json:"handler"`
	// Sandbox is the container whose shim serves this one too; empty if it has
	// one of its own.
	Sandbox string `json:"sandbox,omitempty"`

	Endpoint endpoint    `json:"endpoint"`
	Shim     oci.Process `json:"shim"`
	Holder   oci.Process `json:"holder"`
}

// container is one that the driver looks after.
type container struct {
	entry
	driver *Driver
	dir    string // of our files about it
	// bundleCopy is the bundle that the shim gets, with a spec of our making. Shims
	// leave files in it and expect it to be named after the container.
	bundleCopy string
}

// path returns that of a file of ours about the container.
func (c *container) path(name string) string { return filepath.Join(c.dir, name) }

// tree is the container's cgroup.
func (c *container) tree() (*cgroup.Tree, error) {
	return cgroup.New(c.driver.cfg.Host.Cgroup, c.Cgroup)
}

// booted says whether the host was booted since: nothing of it runs then, and
// all numbers are others'.
func (c *container) rebooted() bool { return c.Boot != c.driver.cfg.Host.BootID }

// spec is the path of the runtime spec that the shim gets.
func (c *container) spec() string { return filepath.Join(c.bundleCopy, bundle.SpecFile) }

func (c *container) save() error { return record.Save(c.driver.cfg.containers(), c.entry) }

// blank returns a container of which only the ID is known.
func (d *Driver) newContainer(id string) *container {
	return &container{
		entry:  entry{Container: record.Container{ID: id, Boot: d.cfg.Host.BootID}},
		driver: d, dir: filepath.Join(d.cfg.containers(), id), bundleCopy: filepath.Join(d.cfg.StateDir, "bundles", id),
	}
}

// Has says whether the driver has a container, be it half-made.
func (d *Driver) Has(id string) bool {
	if bundle.CheckID(id) != nil {
		return false
	}
	_, err := os.Lstat(d.newContainer(id).dir)
	return err == nil
}

// load returns a container with its record, errdefs.ErrNotFound if there is none.
func (d *Driver) load(id string) (*container, error) {
	c := d.newContainer(id)
	c.entry = entry{}
	if err := record.Load(d.cfg.containers(), id, &c.entry); err != nil {
		return nil, err
	}
	return c, nil
}

// find returns a container that Create went through for.
func (d *Driver) find(id string) (*container, error) {
	c, err := d.load(id)
	if err == nil && !c.Created() {
		err = record.Interrupted(id)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// List returns the IDs of all containers that a record exists of, also of those
// half-made.
func (d *Driver) List() ([]string, error) { return record.List(d.cfg.containers()) }

// The annotations by which a spec says which containers share a shim. They are
// those of containerd's CRI plugin, which the shims read too.
const (
	annotationType    = "io.kubernetes.cri.container-type"
	annotationSandbox = "io.kubernetes.cri.sandbox-id"
	typeContainer     = "container"
	typeSandbox       = "sandbox"
)

// request checks what is asked against its bundle and returns the container
// with the spec that the shim is to get.
func (d *Driver) prepare(req oci.Create, h Handler) (*container, []byte, error) {
	b, err := bundle.Read(req)
	if err != nil {
		return nil, nil, err
	}
	c := d.newContainer(req.ID)
	c.Bundle, c.Handler, c.Log, c.Cgroup = b.Dir, h, req.Log, b.Cgroup()
	c.Terminal, c.Stdin, c.StdinOnce = req.Terminal, req.Stdin, req.StdinOnce
	if b.Annotations[annotationType] == typeContainer {
		c.Sandbox = b.Annotations[annotationSandbox]
	}
	spec, err := adaptSpec(b, c.ID)
	return c, spec, err
}

// adapt returns the spec of a bundle for a copy that is elsewhere and run by a
// shim. The root is an absolute path. The score for the kernel's choice of whom
// to kill is ours where none is given, and not the shim's, which is worse. A
// container of no sandbox is one, without which gVisor's shim waits for ever.
func adaptSpec(b *bundle.Bundle, id string) ([]byte, error) {
	var spec map[string]json.RawMessage
	if err := json.Unmarshal(b.Raw, &spec); err != nil {
		return nil, err
	}
	root := b.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(b.Dir, root)
	}
	own, _ := os.ReadFile("/proc/self/oom_score_adj")
	quoted := func(s string) json.RawMessage { return json.RawMessage(strconv.Quote(s)) }
	for field, change := range map[string]func(map[string]json.RawMessage){
		"root": func(m map[string]json.RawMessage) { m["path"], _ = json.Marshal(root) }, // a string can't fail
		"annotations": func(m map[string]json.RawMessage) {
			if _, ok := m[annotationType]; !ok {
				m[annotationType], m[annotationSandbox] = quoted(typeSandbox), quoted(id)
			}
		},
		"process": func(m map[string]json.RawMessage) {
			if _, ok := m["oomScoreAdj"]; !ok {
				m["oomScoreAdj"] = bytes.TrimSpace(own)
			}
		},
	} {
		m := map[string]json.RawMessage{}
		if raw, ok := spec[field]; ok {
			if err := json.Unmarshal(raw, &m); err != nil {
				return nil, err
			}
		}
		change(m)
		raw, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		spec[field] = raw
	}
	return json.Marshal(spec)
}
