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

// entry is the record of a container. It is saved before the first process is started, and again
// after each process that is.
type entry struct {
	record.Container
	Handler Handler `json:"handler"`
	// Sandbox is the ID of the container whose shim serves this one too; empty if this one has its
	// own shim.
	Sandbox string `json:"sandbox,omitempty"`

	Endpoint endpoint    `json:"endpoint"`
	Shim     oci.Process `json:"shim"`
	Holder   oci.Process `json:"holder"`
}

// container is a container of the driver.
type container struct {
	entry
	driver *Driver
	dir    string // of the driver's files about the container
	// bundleCopy is the bundle that the shim gets, with an adapted spec. Shims leave files in it
	// and expect its name to be the container's ID.
	bundleCopy string
}

// path returns the path of a file in the container's directory.
func (c *container) path(name string) string { return filepath.Join(c.dir, name) }

// tree returns the container's cgroup.
func (c *container) tree() (*cgroup.Tree, error) {
	return cgroup.New(c.driver.cfg.Host.Cgroup, c.Cgroup)
}

// rebooted reports whether the host was booted since the container was created. All its processes
// are gone then, and their PIDs may be others'.
func (c *container) rebooted() bool { return c.Boot != c.driver.cfg.Host.BootID }

// spec returns the path of the runtime spec that the shim gets.
func (c *container) spec() string { return filepath.Join(c.bundleCopy, bundle.SpecFile) }

func (c *container) save() error { return record.Save(c.driver.cfg.containers(), c.entry) }

// newContainer returns a container of which only the ID is set.
func (d *Driver) newContainer(id string) *container {
	return &container{
		entry:  entry{Container: record.Container{ID: id, Boot: d.cfg.Host.BootID}},
		driver: d, dir: filepath.Join(d.cfg.containers(), id), bundleCopy: filepath.Join(d.cfg.StateDir, "bundles", id),
	}
}

// Has reports whether the driver has a container, including one whose creation was interrupted.
func (d *Driver) Has(id string) bool {
	if bundle.CheckID(id) != nil {
		return false
	}
	_, err := os.Lstat(d.newContainer(id).dir)
	return err == nil
}

// load returns a container with its record, or errdefs.ErrNotFound.
func (d *Driver) load(id string) (*container, error) {
	c := d.newContainer(id)
	c.entry = entry{}
	if err := record.Load(d.cfg.containers(), id, &c.entry); err != nil {
		return nil, err
	}
	return c, nil
}

// find returns a container whose creation succeeded.
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

// List returns the IDs of all containers, including those whose creation was interrupted.
func (d *Driver) List() ([]string, error) { return record.List(d.cfg.containers()) }

// Annotations of containerd's CRI plugin by which a spec says which containers share a shim. Shims
// read them too.
const (
	annotationType    = "io.kubernetes.cri.container-type"
	annotationSandbox = "io.kubernetes.cri.sandbox-id"
	typeContainer     = "container"
	typeSandbox       = "sandbox"
)

// prepare checks a request against its bundle. It returns the container and the spec for its shim.
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

// adaptSpec adapts the spec of a bundle to a copy in another directory and to a shim:
//   - The root is an absolute path.
//   - An oomScoreAdj that isn't set is huskd's, because a shim's own is worse.
//   - A container without a sandbox is marked as a sandbox, or gVisor's shim would wait forever.
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
		"root": func(m map[string]json.RawMessage) { m["path"], _ = json.Marshal(root) }, // can't fail: a string
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
