package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cgroup/systemd"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
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
	StdinOnce bool `json:"stdinOnce,omitempty"`
	// Restore is the directory that its processes come from, if they do.
	Restore string `json:"restore,omitempty"`
	// Systemd says that its cgroup is a scope that the runtime asks systemd for.
	Systemd bool    `json:"systemd,omitempty"`
	Runtime Runtime `json:"runtime"`
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
	if err := bundle.CheckID(id); err != nil {
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

// request checks what is asked against its bundle.
func (d *Driver) request(req oci.Create, runtime Runtime) (*container, error) {
	b, err := bundle.Read(req)
	if err != nil {
		return nil, err
	}
	c := d.blank(req.ID)
	c.Bundle, c.Log, c.Runtime = b.Dir, req.Log, runtime
	c.Terminal, c.Stdin, c.StdinOnce = req.Terminal, req.Stdin, req.StdinOnce
	c.Restore = req.Restore
	c.Cgroup, c.StdioOwner = b.Cgroup(), b.Owner()
	known := slices.Contains(preferred, runtime.Name)
	c.RuntimeStarts = !known || len(b.Hooks.Poststart) > 0
	if unit, ok := systemd.Unit(c.Cgroup); ok && d.cfg.Systemd {
		c.Systemd = true
		if err := b.SetCgroup(unit); err != nil {
			return nil, err
		}
	}
	c.RuntimeDeletes = c.Systemd || !known || len(b.Hooks.Poststop) > 0 || len(b.Linux.IntelRdt) > 0
	return c, nil
}
