package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/pod"
)

// record is what is known of a container. It is on disk before the first
// process is started, and again after each that is.
type record struct {
	ID   string `json:"id"`
	Boot string `json:"boot"`
	// Bundle is the request's, where conmon has its sockets.
	Bundle string `json:"bundle"`
	Log    string `json:"log,omitempty"`
	// Cgroup is the container's own: the last element has its ID in it.
	Cgroup    string  `json:"cgroup"`
	Terminal  bool    `json:"terminal,omitempty"`
	Stdin     bool    `json:"stdin,omitempty"`
	StdinOnce bool    `json:"stdinOnce,omitempty"`
	Handler   Handler `json:"handler"`
	// Sandbox is the container whose shim serves this one too; empty if it has
	// one of its own.
	Sandbox string `json:"sandbox,omitempty"`

	Endpoint endpoint    `json:"endpoint"`
	Shim     oci.Process `json:"shim"`
	Monitor  oci.Process `json:"monitor"` // conmon
	Holder   oci.Process `json:"holder"`
	Init     oci.Process `json:"init"`
}

// container is one that the driver looks after.
type container struct {
	record
	driver *Driver
	dir    string // of our files about it
	// copied is the bundle that the shim gets, with a spec of our making. Shims
	// leave files in it and expect it to be named after the container.
	copied string
}

const recordFile = "record.json"

// path returns that of a file of ours about the container.
func (c *container) path(name string) string { return filepath.Join(c.dir, name) }

// tree is the container's cgroup.
func (c *container) tree() (*cgroup.Tree, error) {
	return cgroup.New(c.driver.cfg.Host.Cgroup, c.Cgroup)
}

// created says whether Create went through.
func (r record) created() bool { return r.Init.PID != 0 }

// booted says whether the host was booted since: nothing of it runs then, and
// all numbers are others'.
func (c *container) booted() bool { return c.Boot != c.driver.cfg.Host.BootID }

// spec is the path of the runtime spec that the shim gets.
func (c *container) spec() string { return filepath.Join(c.copied, bundle.SpecFile) }

func (c *container) save() error {
	raw, err := json.Marshal(c.record)
	if err != nil {
		return err
	}
	return replace(c.path(recordFile), raw)
}

// replace writes a file so that a reader sees the old or the new content.
func replace(path string, content []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// blank returns a container of which only the ID is known.
func (d *Driver) blank(id string) *container {
	return &container{
		record: record{ID: id, Boot: d.cfg.Host.BootID},
		driver: d, dir: filepath.Join(d.cfg.containers(), id), copied: filepath.Join(d.cfg.StateDir, "bundles", id),
	}
}

// Has says whether the driver has a container, be it half-made.
func (d *Driver) Has(id string) bool {
	if bundle.CheckID(id) != nil {
		return false
	}
	_, err := os.Lstat(d.blank(id).dir)
	return err == nil
}

// load returns a container with its record, errdefs.ErrNotFound if there is none.
func (d *Driver) load(id string) (*container, error) {
	if err := bundle.CheckID(id); err != nil {
		return nil, err
	}
	c := d.blank(id)
	raw, err := os.ReadFile(c.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s: there is none", pod.Short(id)))
	}
	if err == nil {
		c.record = record{} // "null" leaves what is there
		err = json.Unmarshal(raw, &c.record)
	}
	if err == nil && c.ID != id {
		err = fmt.Errorf("it is that of %q", c.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("container %s: its record %s can't be read: %w", pod.Short(id), c.path(recordFile), err)
	}
	return c, nil
}

// find returns a container that Create went through for.
func (d *Driver) find(id string) (*container, error) {
	c, err := d.load(id)
	if err == nil && !c.created() {
		err = errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s: its creation was interrupted; delete it", pod.Short(id)))
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// List returns the IDs of all containers that a record exists of, also of those
// half-made.
func (d *Driver) List() ([]string, error) {
	entries, err := os.ReadDir(d.cfg.containers())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, err
}

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
func (d *Driver) request(req oci.Create, h Handler) (*container, []byte, error) {
	b, err := bundle.Read(req)
	if err != nil {
		return nil, nil, err
	}
	c := d.blank(req.ID)
	c.Bundle, c.Handler, c.Log, c.Cgroup = b.Dir, h, req.Log, b.Cgroup()
	c.Terminal, c.Stdin, c.StdinOnce = req.Terminal, req.Stdin, req.StdinOnce
	if b.Annotations[annotationType] == typeContainer {
		c.Sandbox = b.Annotations[annotationSandbox]
	}
	spec, err := adapt(b, c.ID)
	return c, spec, err
}

// adapt returns the spec of a bundle for a copy that is elsewhere and run by a
// shim. The root is an absolute path. The score for the kernel's choice of whom
// to kill is ours where none is given, and not the shim's, which is worse. A
// container of no sandbox is one, without which gVisor's shim waits for ever.
func adapt(b *bundle.Bundle, id string) ([]byte, error) {
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
