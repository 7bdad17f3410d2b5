package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// record is what is known of a container. It is on disk before the first
// process is started, without the processes' identities, and again once the
// container is created, with them.
type record struct {
	ID     string `json:"id"`
	Boot   string `json:"boot"`
	Bundle string `json:"bundle"`
	Log    string `json:"log,omitempty"`
	// Cgroup is the container's own: the last element has its ID in it.
	Cgroup   string `json:"cgroup"`
	Terminal bool   `json:"terminal,omitempty"`
	Stdin    bool   `json:"stdin,omitempty"`
	// StdinOnce: conmon closes stdin when a client of attach leaves.
	StdinOnce bool    `json:"stdinOnce,omitempty"`
	Runtime   Runtime `json:"runtime"`
	// StdioOwner is the user of the host that may open the processes' pipes; nil
	// where the runtime sees to that.
	StdioOwner *int `json:"stdioOwner,omitempty"`
	// RuntimeStarts and RuntimeDeletes: see the package comment.
	RuntimeStarts  bool `json:"runtimeStarts,omitempty"`
	RuntimeDeletes bool `json:"runtimeDeletes,omitempty"`

	Monitor oci.Process `json:"monitor"`
	Init    oci.Process `json:"init"`
}

// container is one that the driver looks after.
type container struct {
	record
	driver *Driver
	dir    string // of our files about it
}

const recordFile = "record.json"

// path returns that of a file of ours about the container.
func (c *container) path(name string) string { return filepath.Join(c.dir, name) }

// root is the directory of the container's runtime.
func (c *container) root() string {
	return filepath.Join(c.driver.cfg.roots(), c.Runtime.Name)
}

// state is where the runtime keeps what it knows of the container.
func (c *container) state() string { return filepath.Join(c.root(), c.ID) }

// fifo is where the init of a created container waits.
func (c *container) fifo() string { return filepath.Join(c.state(), "exec.fifo") }

// tree is the container's cgroup.
func (c *container) tree() (*cgroup.Tree, error) {
	return cgroup.New(c.driver.cfg.Host.Cgroup, c.Cgroup)
}

// created says whether Create went through.
func (r record) created() bool { return r.Init.PID != 0 }

// booted says whether the host was booted since: nothing of it runs then, and
// all numbers are others'.
func (c *container) booted() bool { return c.Boot != c.driver.cfg.Host.BootID }

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
		driver: d, dir: filepath.Join(d.cfg.containers(), id),
	}
}

// load returns a container with its record, errdefs.ErrNotFound if there is none.
func (d *Driver) load(id string) (*container, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	c := d.blank(id)
	raw, err := os.ReadFile(c.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s: there is none", pod.Short(id)))
	}
	if err == nil {
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
	return c, err
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

// bundleSpec is what of a bundle's config.json concerns the driver.
type bundleSpec struct {
	Process *struct {
		Terminal bool `json:"terminal"`
		User     struct {
			UID uint32 `json:"uid"`
		} `json:"user"`
	} `json:"process"`
	Hooks struct {
		Poststart []json.RawMessage `json:"poststart"`
		Poststop  []json.RawMessage `json:"poststop"`
	} `json:"hooks"`
	Linux struct {
		CgroupsPath string                 `json:"cgroupsPath"`
		UIDMappings []specs.LinuxIDMapping `json:"uidMappings"`
		IntelRdt    json.RawMessage        `json:"intelRdt"`
	} `json:"linux"`
}

// request checks what is asked against its bundle.
func (d *Driver) request(req oci.Create, runtime Runtime) (*container, error) {
	if err := checkID(req.ID); err != nil {
		return nil, err
	}
	c := d.blank(req.ID)
	c.Bundle, c.Log, c.Runtime = filepath.Clean(req.Bundle), req.Log, runtime
	c.Terminal, c.Stdin, c.StdinOnce = req.Terminal, req.Stdin, req.StdinOnce
	invalid := func(format string, args ...any) (*container, error) {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("create container %s: ", pod.Short(req.ID)) + fmt.Sprintf(format, args...))
	}
	if !filepath.IsAbs(req.Bundle) || req.Log != "" && !filepath.IsAbs(req.Log) {
		return invalid("bundle %q and log %q must be absolute paths", req.Bundle, req.Log)
	}
	// conmon takes what is before a colon for the name of a log driver, and
	// what is after the next one for nothing.
	if strings.Contains(req.Log, ":") {
		return invalid("log %q has a colon, which conmon can't do: use another directory", req.Log)
	}
	file := filepath.Join(c.Bundle, specFile)
	raw, err := os.ReadFile(file)
	if err != nil {
		return invalid("read the spec: %v", err)
	}
	var spec bundleSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return invalid("spec %s: %v", file, err)
	}
	if spec.Process == nil {
		return invalid("spec %s has no process", file)
	}
	if spec.Process.Terminal != req.Terminal {
		return invalid("spec %s says terminal %v, the request %v", file, spec.Process.Terminal, req.Terminal)
	}
	// Everything in this cgroup is killed when the container is deleted, so it
	// must be nobody else's.
	c.Cgroup = spec.Linux.CgroupsPath
	if !path.IsAbs(c.Cgroup) || path.Clean(c.Cgroup) != c.Cgroup || !strings.Contains(path.Base(c.Cgroup), req.ID) {
		return invalid("spec %s: linux.cgroupsPath %q must be absolute and end in a name with the container's ID in it", file, c.Cgroup)
	}
	for _, m := range spec.Linux.UIDMappings {
		if uid := spec.Process.User.UID; uid >= m.ContainerID && uid-m.ContainerID < m.Size {
			owner := int(m.HostID + uid - m.ContainerID)
			c.StdioOwner = &owner
		}
	}
	known := slices.Contains(preferred, runtime.Name)
	c.RuntimeStarts = !known || len(spec.Hooks.Poststart) > 0
	c.RuntimeDeletes = !known || len(spec.Hooks.Poststop) > 0 || len(spec.Linux.IntelRdt) > 0
	return c, nil
}

// specFile is the runtime spec in a bundle.
const specFile = "config.json"
