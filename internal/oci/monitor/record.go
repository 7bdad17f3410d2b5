package monitor

import (
	"path/filepath"
	"slices"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cgroup/systemd"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/record"
)

// entry is the record of a container. It is saved before the first process is started, without the
// identities of processes, and again with them once the container is created.
type entry struct {
	record.Container
	// Restore is the directory of the checkpoint that its processes are restored from; may be
	// empty.
	Restore string `json:"restore,omitempty"`
	// Systemd says that its cgroup is a systemd scope.
	Systemd bool `json:"systemd,omitempty"`
	// OthersKilled is the number of OOM kills in the slice that are attributed to other containers:
	// see attributeOOM.
	OthersKilled int     `json:"othersKilled,omitempty"`
	Runtime      Runtime `json:"runtime"`
	// StdioOwner is the host's user that owns the processes' pipes; nil if the runtime sets it.
	StdioOwner *int `json:"stdioOwner,omitempty"`
	// RuntimeStarts and RuntimeDeletes say that the runtime does it: see the package comment.
	RuntimeStarts  bool `json:"runtimeStarts,omitempty"`
	RuntimeDeletes bool `json:"runtimeDeletes,omitempty"`
}

// container is a container of the driver.
type container struct {
	entry
	driver *Driver
	dir    string // of the driver's files about the container
}

// path returns the path of a file in the container's directory.
func (c *container) path(name string) string { return filepath.Join(c.dir, name) }

// runtimeRoot returns the directory of the container's runtime.
func (c *container) runtimeRoot() string {
	return filepath.Join(c.driver.cfg.runtimesDir(), c.Runtime.Name)
}

// runtimeState returns the runtime's directory of the container.
func (c *container) runtimeState() string { return filepath.Join(c.runtimeRoot(), c.ID) }

// fifo returns the path of the FIFO at which the init process of a created container waits.
func (c *container) fifo() string { return filepath.Join(c.runtimeState(), "exec.fifo") }

// tree returns the container's cgroup.
func (c *container) tree() (*cgroup.Tree, error) {
	return cgroup.New(c.driver.cfg.Host.Cgroup, c.Cgroup)
}

// rebooted reports whether the host was booted since the container was created. All its processes
// are gone then, and their PIDs may be others'.
func (c *container) rebooted() bool { return c.Boot != c.driver.cfg.Host.BootID }

func (c *container) save() error { return record.Save(c.driver.cfg.containers(), c.entry) }

// newContainer returns a container of which only the ID is set.
func (d *Driver) newContainer(id string) *container {
	return &container{
		entry:  entry{Container: record.Container{ID: id, Boot: d.cfg.Host.BootID}},
		driver: d, dir: filepath.Join(d.cfg.containers(), id),
	}
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
	return c, err
}

// List returns the IDs of all containers, including those whose creation was interrupted.
func (d *Driver) List() ([]string, error) { return record.List(d.cfg.containers()) }

// prepare checks a request against its bundle and returns the container.
func (d *Driver) prepare(req oci.Create, runtime Runtime) (*container, error) {
	b, err := bundle.Read(req)
	if err != nil {
		return nil, err
	}
	c := d.newContainer(req.ID)
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
