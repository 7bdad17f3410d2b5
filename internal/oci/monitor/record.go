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

// entry is what is known of a container. It is on disk before the first process
// is started, without the processes' identities, and again once the container is
// created, with them.
type entry struct {
	record.Container
	// Restore is the directory that its processes come from, if they do.
	Restore string `json:"restore,omitempty"`
	// Systemd says that its cgroup is a scope that the runtime asks systemd for.
	Systemd bool `json:"systemd,omitempty"`
	// OthersKilled is how many processes of the slice's other scopes the kernel
	// has killed for want of memory, with what is known of it now: see blame.
	OthersKilled int     `json:"othersKilled,omitempty"`
	Runtime      Runtime `json:"runtime"`
	// StdioOwner is the user of the host that may open the processes' pipes; nil
	// where the runtime sees to that.
	StdioOwner *int `json:"stdioOwner,omitempty"`
	// RuntimeStarts and RuntimeDeletes: see the package comment.
	RuntimeStarts  bool `json:"runtimeStarts,omitempty"`
	RuntimeDeletes bool `json:"runtimeDeletes,omitempty"`
}

// container is one that the driver looks after.
type container struct {
	entry
	driver *Driver
	dir    string // of our files about it
}

// path returns that of a file of ours about the container.
func (c *container) path(name string) string { return filepath.Join(c.dir, name) }

// root is the directory of the container's runtime.
func (c *container) runtimeRoot() string {
	return filepath.Join(c.driver.cfg.runtimesDir(), c.Runtime.Name)
}

// state is where the runtime keeps what it knows of the container.
func (c *container) runtimeState() string { return filepath.Join(c.runtimeRoot(), c.ID) }

// fifo is where the init of a created container waits.
func (c *container) fifo() string { return filepath.Join(c.runtimeState(), "exec.fifo") }

// tree is the container's cgroup.
func (c *container) tree() (*cgroup.Tree, error) {
	return cgroup.New(c.driver.cfg.Host.Cgroup, c.Cgroup)
}

// booted says whether the host was booted since: nothing of it runs then, and
// all numbers are others'.
func (c *container) rebooted() bool { return c.Boot != c.driver.cfg.Host.BootID }

func (c *container) save() error { return record.Save(c.driver.cfg.containers(), c.entry) }

// blank returns a container of which only the ID is known.
func (d *Driver) newContainer(id string) *container {
	return &container{
		entry:  entry{Container: record.Container{ID: id, Boot: d.cfg.Host.BootID}},
		driver: d, dir: filepath.Join(d.cfg.containers(), id),
	}
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
	return c, err
}

// List returns the IDs of all containers that a record exists of, also of those
// half-made.
func (d *Driver) List() ([]string, error) { return record.List(d.cfg.containers()) }

// request checks what is asked against its bundle.
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
