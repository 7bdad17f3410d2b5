package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/infra"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// kernel implements sandbox.Kernel.
type kernel struct{ *life }

func (k kernel) label(what, path string) string {
	path = k.rel(path)
	dir, base := filepath.Split(path)
	if id := filepath.Base(dir); pod.ValidID(id) { // …/sandboxes/ID/memory
		return what + " " + k.m.name(id) + " " + base
	}
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	short := base[strings.LastIndexByte(base, '-')+1:] // …/husk-INSTANCE-SHORT
	for id, name := range k.m.names {
		if pod.Short(id) == short {
			return what + " " + name
		}
	}
	return what + " " + path
}

func (k kernel) Pin(p netns.Pins) error {
	var paths []string
	for _, path := range []string{p.Net, p.IPC, p.UTS, p.User} {
		if path != "" {
			paths = append(paths, k.rel(path))
		}
	}
	// A crash may leave some of the pins.
	for i, path := range paths {
		err := k.do(context.Background(), k.label("pin", path), func() error {
			k.m.pins[path] = true
			return nil
		})
		if err != nil {
			_ = k.alive(func() error {
				for _, path := range paths[:i+1] {
					delete(k.m.pins, path)
				}
				return nil
			})
			return err
		}
	}
	return nil
}

func (k kernel) Unpin(paths ...string) error {
	for _, path := range paths {
		if path == "" || !k.Pinned(path) {
			continue
		}
		if err := k.do(context.Background(), k.label("unpin", path), func() error {
			delete(k.m.pins, k.rel(path))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func (k kernel) Pinned(path string) bool {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return k.m.pins[k.rel(path)]
}

func (k kernel) Pins(prefix string) ([]string, error) {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	var paths []string
	for path := range k.m.pins {
		if strings.HasPrefix(path, filepath.Join(netns.Dir, prefix)) {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

func (k kernel) MountMemory(path string, _, _ int) error {
	return k.do(context.Background(), k.label("mount", path), func() error {
		k.m.mounts[k.rel(path)] = true
		return nil
	})
}

func (k kernel) Unmount(path string) error {
	return k.do(context.Background(), k.label("unmount", path), func() error {
		delete(k.m.mounts, k.rel(path))
		return nil
	})
}

// mounts implements container.Mounts.
type mounts struct{ *life }

func (f mounts) Mount(s rootfs.Spec) (string, error) {
	path := rootfs.Path(s.Dir)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	return path, f.do(context.Background(), "rootfs "+f.m.name(filepath.Base(s.Dir)), func() error {
		f.m.mounts[f.rel(s.Dir)] = true
		return nil
	})
}

func (f mounts) Unmount(dir string) error {
	return f.do(context.Background(), "unroot "+f.m.name(filepath.Base(dir)), func() error {
		delete(f.m.mounts, f.rel(dir))
		return nil
	})
}

// cgroupName returns the name of the sandbox that a cgroup is for.
func (l *life) cgroupName(path string) string {
	short := path[strings.LastIndexByte(path, '-')+1:]
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for id, name := range l.m.names {
		if pod.Short(id) == short {
			return name
		}
	}
	return path
}

// cgroups implements sandbox.Cgroups.
type cgroups struct{ *life }

func (cgroups) Parent(named string) (string, error) { return named, nil }

func (l cgroups) Create(path string, _ *runtimeapi.LinuxContainerResources) error {
	return l.do(context.Background(), "cgroup "+l.cgroupName(path), func() error {
		l.m.cgroups[path] = true
		return nil
	})
}

func (l cgroups) List() ([]string, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return slices.Sorted(maps.Keys(l.m.cgroups)), nil
}

func (l cgroups) Remove(path string) error {
	return l.do(context.Background(), "uncgroup "+l.cgroupName(path), func() error {
		for _, p := range l.m.procs {
			if p.exit == nil && strings.HasPrefix(p.cgroup, path+"/") {
				return fmt.Errorf("cgroup %s: %w", path, syscall.EBUSY)
			}
		}
		delete(l.m.cgroups, path)
		return nil
	})
}

// handlers implements sandbox.Handlers.
type handlers struct{}

func (handlers) Check(string, bool) error        { return nil }
func (handlers) RuntimeSandbox(string) bool      { return false }
func (handlers) Order(string) sandboxstate.Order { return "" }

// runtime implements container.Runtime.
type runtime struct{ *life }

func (r runtime) Create(ctx context.Context, c oci.Create) (oci.Process, error) {
	config, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err != nil {
		return oci.Process{}, err
	}
	var s specs.Spec
	if err := json.Unmarshal(config, &s); err != nil {
		return oci.Process{}, err
	}
	p := &process{id: c.ID, cgroup: s.Linux.CgroupsPath, ended: make(chan struct{}), sandbox: filepath.Base(filepath.Dir(s.Linux.CgroupsPath))}
	var missing []string
	err = r.do(ctx, "create "+r.m.name(c.ID), func() error {
		if r.m.procs[c.ID] != nil {
			return errdefs.ErrAlreadyExists.WithMessage("container exists")
		}
		for _, ns := range s.Linux.Namespaces {
			if ns.Path == "" || strings.HasPrefix(ns.Path, "/proc/") {
				continue
			}
			if !r.m.pins[r.rel(ns.Path)] {
				missing = append(missing, ns.Path)
			}
			if ns.Type == specs.NetworkNamespace {
				p.net = r.rel(ns.Path)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("no namespace is pinned at %v", missing)
		}
		r.m.known["pid"]++
		p.pid = 100 + r.m.known["pid"]
		r.m.procs[c.ID] = p
		return nil
	})
	return oci.Process{PID: p.pid, Start: uint64(p.pid)}, err
}

func (r runtime) Start(ctx context.Context, id string) error {
	return r.do(ctx, "start "+r.m.name(id), func() error {
		p := r.m.procs[id]
		if p == nil || p.exit != nil {
			return errdefs.ErrNotFound.WithMessage("no such process")
		}
		p.running = true
		return nil
	})
}

func (r runtime) Signal(ctx context.Context, id string, _ syscall.Signal) error {
	return r.do(ctx, "signal "+r.m.name(id), func() error {
		if p := r.m.procs[id]; p != nil && r.m.chance(r.m.names[id]).IntN(2) == 0 {
			p.end(0)
		}
		return nil
	})
}

func (r runtime) KillAll(ctx context.Context, id string) error {
	return r.do(ctx, "kill "+r.m.name(id), func() error {
		if p := r.m.procs[id]; p != nil {
			p.end(137)
		}
		return nil
	})
}

func (r runtime) Wait(ctx context.Context, id string) (oci.Exit, error) {
	var p *process
	err := r.do(ctx, "wait "+r.m.name(id), func() error {
		if p = r.m.procs[id]; p == nil {
			return errdefs.ErrNotFound.WithMessage("no such container")
		}
		return nil
	})
	if err != nil {
		return oci.Exit{}, err
	}
	select {
	case <-p.ended:
		return *p.exit, nil
	case <-ctx.Done():
		return oci.Exit{}, ctx.Err()
	}
}

func (r runtime) Delete(ctx context.Context, id string) error {
	return r.do(ctx, "delete "+r.m.name(id), func() error {
		if p := r.m.procs[id]; p != nil {
			p.end(137)
		}
		delete(r.m.procs, id)
		return nil
	})
}

// infraDriver implements sandbox.Infra.
type infraDriver struct{ *life }

func (d infraDriver) Start(ctx context.Context, r infra.Request) (oci.Process, error) {
	p := &process{id: r.ID, cgroup: r.Cgroup, running: true, ended: make(chan struct{}), sandbox: filepath.Base(filepath.Dir(r.Cgroup))}
	err := d.do(ctx, "create "+d.m.name(r.ID), func() error {
		for _, path := range []string{r.Namespaces.Net, r.Namespaces.IPC, r.Namespaces.UTS} {
			if path != "" && !d.m.pins[d.rel(path)] {
				return fmt.Errorf("no namespace is pinned at %s", path)
			}
		}
		if r.Namespaces.Net != "" {
			p.net = d.rel(r.Namespaces.Net)
		}
		d.m.known["pid"]++
		p.pid = 100 + d.m.known["pid"]
		d.m.procs[r.ID] = p
		return nil
	})
	return oci.Process{PID: p.pid, Start: uint64(p.pid)}, err
}

func (d infraDriver) Wait(ctx context.Context, id, _ string, _ oci.Process) (oci.Exit, error) {
	return runtime(d).Wait(ctx, id)
}

func (d infraDriver) Remove(ctx context.Context, id, _ string, _ oci.Process) error {
	return runtime(d).Delete(ctx, id)
}

// network implements sandbox.Network. Its leases are kept by the machine, as the real network has
// its own journal.
type network struct{ *life }

const ifName = "eth0"

func (n network) Attach(ctx context.Context, a pod.Attachment) ([]pod.Attached, error) {
	var lease ipam.Lease
	err := n.do(ctx, "attach "+n.m.name(a.Sandbox), func() (err error) {
		owner := ipam.Owner{Sandbox: a.Sandbox, IfName: ifName}
		if lease, err = n.m.alloc.Reserve(owner, time.Now()); err != nil {
			return err
		}
		for other, has := range n.m.leases {
			if other != a.Sandbox && has.Addresses[0] == lease.Addresses[0] {
				n.m.wrong = append(n.m.wrong, fmt.Sprintf("%v is leased to %s while %s has it", lease.Addresses[0], n.m.names[a.Sandbox], n.m.names[other]))
			}
		}
		if !n.m.pins[n.rel(a.Netns)] {
			return fmt.Errorf("no namespace is pinned at %s", a.Netns)
		}
		n.m.alloc.Bind(owner)
		lease.State = ipam.Bound
		n.m.leases[a.Sandbox] = lease
		return nil
	})
	if err != nil {
		_ = n.alive(func() error { // a failed attachment is a debt
			if _, ok := n.m.leases[a.Sandbox]; ok {
				n.m.owed[a.Sandbox] = true
			}
			n.m.alloc.Forget(ipam.Owner{Sandbox: a.Sandbox, IfName: ifName})
			if l, ok := n.m.leases[a.Sandbox]; ok {
				return n.m.alloc.Restore(l)
			}
			return nil
		})
		return nil, err
	}
	return []pod.Attached{{IfName: ifName, Addresses: []netip.Prefix{netip.PrefixFrom(lease.Addresses[0], subnet.Bits())}}}, nil
}

func (n network) Detach(ctx context.Context, a pod.Attachment) error {
	return n.do(ctx, "detach "+n.m.name(a.Sandbox), func() error {
		for _, p := range n.m.procs {
			if p.exit == nil && p.net != "" && p.net == n.rel(a.Netns) {
				n.m.wrong = append(n.m.wrong, fmt.Sprintf("%s is detached while process %s is in it", n.m.names[a.Sandbox], n.m.names[p.id]))
			}
		}
		n.m.release(a.Sandbox)
		return nil
	})
}

// release ends a lease and quarantines its address. The caller holds m.mu.
func (m *machine) release(sandbox string) {
	if _, ok := m.leases[sandbox]; !ok {
		return
	}
	owner := ipam.Owner{Sandbox: sandbox, IfName: ifName}
	m.alloc.Release(owner)
	m.quarantined = append(m.quarantined, m.alloc.Quarantine(owner, time.Now())...)
	delete(m.leases, sandbox)
	delete(m.owed, sandbox)
}

// reconcile does what the network does when huskd starts: it releases all leases but those of live
// sandboxes, and restores the allocator from the records.
func (m *machine) reconcile(live []pod.Attachment) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alloc, _ = ipam.New(quarantine, subnet)
	for _, lease := range m.leases {
		if err := m.alloc.Restore(lease); err != nil {
			return err
		}
	}
	m.alloc.RestoreQuarantine(time.Now(), m.quarantined)
	var lost error
	keep := map[string]bool{}
	for _, a := range live {
		keep[a.Sandbox] = true
		if _, ok := m.leases[a.Sandbox]; !ok {
			m.impaired[a.Sandbox] = true
			lost = fmt.Errorf("%s is ready without an address", m.names[a.Sandbox])
		}
	}
	for sandbox := range m.leases {
		if !keep[sandbox] {
			m.release(sandbox)
		}
	}
	return lost
}

// settleDebts pays the debts of the network and ends quarantines that are over.
func (m *machine) settleDebts() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for sandbox := range m.owed {
		m.release(sandbox)
	}
	m.alloc.Expire(time.Now(), len(m.quarantined))
	var still []ipam.Quarantined
	for _, q := range m.quarantined {
		if q.Until.After(time.Now()) {
			still = append(still, q)
		}
	}
	m.quarantined = still
}

// images implements container.Images with one image.
type images struct{ *life }

const imageID = "sha256:0000"

func (i images) Image(context.Context, string) (container.Image, error) {
	return container.Image{ID: imageID, Name: "image", Lower: []string{"/layer"}}, nil
}

func (i images) Hold(string, string) (func(), error) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	i.holds++
	return func() {
		i.m.mu.Lock()
		defer i.m.mu.Unlock()
		i.holds--
	}, nil
}

// sandboxes implements container.Sandboxes.
type sandboxes struct{ *life }

func (s sandboxes) Pod(id string) pod.Ref {
	st, err := s.sandboxes.Get(id)
	if err != nil {
		return pod.Ref{}
	}
	return st.Ref()
}

func (s sandboxes) Sandbox(id string) (container.Sandbox, error) {
	st, err := s.sandboxes.Get(id)
	if err != nil {
		return container.Sandbox{}, err
	}
	if st.State != ready {
		return container.Sandbox{}, errdefs.ErrFailedPrecondition.WithMessage("sandbox is " + string(st.State))
	}
	return s.view(st), nil
}

// view returns what containers know of a sandbox.
func (l *life) view(st sandbox.Status) container.Sandbox {
	files := l.sandboxes.Files(st)
	out := container.Sandbox{Config: st.Config, Cgroup: l.sandboxes.Cgroup(st)}
	out.Namespaces.Net, out.Namespaces.IPC, out.Namespaces.UTS = files.Net, files.IPC, files.UTS
	out.Files.Hosts, out.Files.ResolvConf, out.Files.Hostname, out.Files.Shm = files.Hosts, files.ResolvConf, files.Hostname, files.Shm
	if st.Infra != nil {
		out.Namespaces.PID = fmt.Sprintf("/proc/%d/ns/pid", st.Infra.PID)
	}
	return out
}
