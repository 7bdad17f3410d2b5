package simulation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// run is the run of a schedule.
type run struct {
	*machine
	life  *life
	calls sync.WaitGroup // of clients
	ended sync.WaitGroup // of goroutines that lives have left
	// kept are the sandboxes and containers that a client was given and that no client has ended. They
	// must go on whatever happens to huskd.
	kept map[string]bool
	// asked counts, by ID, the calls for a change that are running or have failed.
	asked map[string]int
	// known are the sandboxes and containers that some client knows.
	known map[string]bool
}

func newRun(s schedule, dir string) *run {
	return &run{machine: newMachine(s, dir), kept: map[string]bool{}, asked: map[string]int{}, known: map[string]bool{}}
}

// runSchedule runs a schedule to its end and returns the machine, with the broken promises.
func runSchedule(t *testing.T, s schedule, tracing bool) *machine {
	dir, err := os.MkdirTemp(scratch, "life-*")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	r := newRun(s, dir)
	r.tracing = tracing
	r.startHuskd()
	for _, st := range s.Steps {
		if r.broken() {
			break
		}
		// Sleep at least so long that everything happens that can happen now.
		time.Sleep(max(time.Until(r.began.Add(st.At.Duration)), time.Microsecond))
		r.note("%v", st)
		r.mu.Lock()
		r.steps++
		r.mu.Unlock()
		r.step(st)
	}
	r.finish()
	return r.machine
}

func (r *run) broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.wrong) > 0
}

func (r *run) startHuskd() {
	l, err := r.machine.start()
	r.life = l
	if err != nil {
		r.violate("huskd can't start: %v", err)
		return
	}
	r.checkKept()
}

// restartAfter starts the next huskd after a pause. The last one is over.
func (r *run) restartAfter(gap time.Duration) {
	last := r.life
	r.ended.Go(last.close)
	time.Sleep(gap)
	r.startHuskd()
}

func (r *run) step(st step) {
	l := r.life
	switch st.Do {
	case "crash":
		l.kill()
		r.restartAfter(st.For.Duration)
	case "term":
		l.shutDown()
		r.restartAfter(st.For.Duration)
	case "reboot":
		clear(r.kept)
		if err := l.cutPower(); err != nil {
			r.violate("%v", err)
		}
		r.restartAfter(st.For.Duration)
	case "damage":
		clear(r.kept)
		l.kill()
		r.damage()
		r.restartAfter(st.For.Duration)
	case "full":
		r.disk.SetFull(true)
		time.AfterFunc(st.For.Duration, func() { r.disk.SetFull(false) })
	case "exit", "infra-exit", "unpin":
		r.disturb(st)
	default:
		ctx, cancel := context.WithTimeout(context.Background(), st.For.Duration)
		r.calls.Go(func() {
			defer cancel()
			r.call(ctx, l, st)
		})
	}
}

// damage flips bits of the journal or cuts off its end. huskd must find what the records described
// without them.
func (r *run) damage() {
	r.mu.Lock()
	defer r.mu.Unlock()
	rnd := r.chance(fmt.Sprint("damage ", r.lives))
	r.recordsLost = true
	r.everLost = true
	for range 1 + rnd.IntN(3) {
		// The header holds the format's version, and huskd refuses another.
		const header = 16
		if size := len(r.disk.Content("journal")) - header; size > 0 {
			r.disk.Damage("journal", header+rnd.IntN(size), rnd.IntN(4) == 0)
		}
	}
}

// disturb makes processes or namespaces vanish, which no client has asked for.
func (r *run) disturb(st step) {
	for _, sb := range r.ofPod(r.life, st.Pod) {
		r.mu.Lock()
		switch st.Do {
		case "unpin":
			if sb.Attachment.Netns != "" && r.pins[sb.Attachment.Netns] {
				r.forgo(sb.ID)
				r.impaired[sb.ID] = true
				delete(r.pins, sb.Attachment.Netns)
			}
		case "infra-exit":
			if p := r.procs[sb.ID]; p != nil && p.running {
				r.forgo(sb.ID)
				r.impaired[sb.ID] = true
				p.end(1)
			}
		case "exit":
			for _, c := range r.life.containers.List(sb.ID) {
				if p := r.procs[c.ID]; c.Name() == st.Container && p != nil && p.running {
					delete(r.kept, c.ID)
					p.end(3)
				}
			}
		}
		r.mu.Unlock()
	}
}

// forgo ends the promise that a sandbox and its containers go on. The caller holds m.mu.
func (r *run) forgo(sandbox string) {
	delete(r.kept, sandbox)
	for _, c := range r.life.containers.List(sandbox) {
		delete(r.kept, c.ID)
	}
}

// ofPod returns the sandboxes of a pod, in an order that doesn't depend on their IDs.
func (r *run) ofPod(l *life, name string) []sandbox.Status {
	list := slices.DeleteFunc(l.sandboxes.List(), func(st sandbox.Status) bool { return st.Ref().Name != name })
	slices.SortFunc(list, func(a, b sandbox.Status) int { return strings.Compare(r.name(a.ID), r.name(b.ID)) })
	return list
}

// call makes a client's call.
func (r *run) call(ctx context.Context, l *life, st step) {
	switch st.Do {
	case "run":
		r.runPod(ctx, l, st)
		return
	case "create":
		r.create(ctx, l, st)
		return
	}
	for _, sb := range r.ofPod(l, st.Pod) {
		switch st.Do {
		case "stop", "remove":
			r.mu.Lock()
			r.forgo(sb.ID)
			r.mu.Unlock()
			answered := r.ask(sb.ID)
			call, gone := l.sandboxes.Stop, r.nothingRuns
			if st.Do == "remove" {
				call, gone = l.sandboxes.Remove, r.nothingIsLeft
			}
			err := call(ctx, sb.ID)
			answered(err)
			if r.succeeded(l, st, err) {
				gone(l, sb.ID)
			}
			continue
		}
		for _, c := range l.containers.List(sb.ID) {
			if c.Name() == st.Container {
				r.callContainer(ctx, l, st, c)
			}
		}
	}
}

// ask notes a running call, until it has succeeded: after an error huskd has promised nothing, and
// after a timeout the call goes on.
func (r *run) ask(id string) (answered func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[id]++
	r.known[id] = true
	return func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.asked[id]--
		}
	}
}

// succeeded reports whether the client got the answer that its call succeeded.
func (r *run) succeeded(l *life, st step, err error) bool {
	if l.over() {
		return false
	}
	r.note("%v -> %v", st, err)
	return err == nil
}

// config returns the config of a pod, which depends on its name.
func config(st step) *runtimeapi.PodSandboxConfig {
	c := &runtimeapi.PodSandboxConfig{
		Metadata:  &runtimeapi.PodSandboxMetadata{Name: st.Pod, Namespace: "default", Uid: st.Pod, Attempt: uint32(st.Attempt)},
		Hostname:  st.Pod,
		DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	options := c.Linux.SecurityContext.NamespaceOptions
	switch st.Pod {
	case "shared": // a shared PID namespace, so an infra process
		options.Pid = runtimeapi.NamespaceMode_POD
	case "late": // attached after the infra process is started
		c.Annotations = map[string]string{"cni.husk.dev/network": string(sandboxstate.AfterStart)}
	case "host":
		options.Network, options.Ipc = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE
	}
	return c
}

func (r *run) runPod(ctx context.Context, l *life, st step) {
	got, err := l.sandboxes.Run(ctx, config(st), "")
	if ctx.Err() != nil {
		r.unanswered(l, st)
	}
	if !r.succeeded(l, st, err) {
		return
	}
	r.mu.Lock()
	r.known[got.ID] = true
	r.mu.Unlock()
	now, err := l.sandboxes.Get(got.ID)
	if err != nil || now.State != ready {
		r.mu.Lock()
		ended := r.asked[got.ID] > 0 || r.impaired[got.ID] // in the meantime
		r.mu.Unlock()
		if !ended {
			r.violate("Run returned %s, which is %s", r.name(got.ID), now.State)
		}
		return
	}
	r.mu.Lock()
	r.kept[got.ID] = !r.impaired[got.ID] && r.asked[got.ID] == 0
	r.mu.Unlock()
	r.checkReady(l, now)
}

// unanswered notes what a client that didn't wait for the answer may ask for again.
func (r *run) unanswered(l *life, st step) {
	for _, sb := range r.ofPod(l, st.Pod) {
		containers := l.containers.List(sb.ID)
		r.mu.Lock()
		r.known[sb.ID] = true
		for _, c := range containers {
			r.known[c.ID] = true
		}
		r.mu.Unlock()
	}
}

func (r *run) create(ctx context.Context, l *life, st step) {
	sbs := r.ofPod(l, st.Pod)
	if len(sbs) == 0 {
		return
	}
	sb := slices.MaxFunc(sbs, func(a, b sandbox.Status) int { return a.Created.Compare(b.Created) })
	got, err := l.containers.Create(ctx, sb.ID, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: st.Container, Attempt: uint32(st.Attempt)},
		Image:    &runtimeapi.ImageSpec{Image: "image"},
		Command:  []string{"/bin/true"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: config(st).GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	})
	if ctx.Err() != nil {
		r.unanswered(l, st)
	}
	if r.succeeded(l, st, err) {
		r.mu.Lock()
		r.known[got.ID] = true
		r.mu.Unlock()
		r.keep(l, got.ID)
	}
}

// keep notes that the process of a container must go on.
func (r *run) keep(l *life, id string) {
	st, err := l.containers.Get(id)
	if err != nil || !st.State.Live() {
		return // it has ended in the meantime
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if sb, err := l.sandboxes.Get(st.Sandbox); err != nil || sb.State != ready || !r.kept[st.Sandbox] || r.asked[id] > 0 {
		return // it is about to end
	}
	if p := r.procs[id]; p == nil {
		r.wrong = append(r.wrong, fmt.Sprintf("%s is %s without a process", r.names[id], st.State))
	} else if p.exit == nil {
		r.kept[id] = true
	}
}

func (r *run) callContainer(ctx context.Context, l *life, st step, c container.Status) {
	r.mu.Lock()
	delete(r.kept, c.ID)
	r.mu.Unlock()
	answered := r.ask(c.ID)
	var err error
	switch st.Do {
	case "start":
		err = l.containers.Start(ctx, c.ID)
	case "end":
		err = l.containers.Stop(ctx, c.ID, time.Duration(st.Attempt)*time.Second)
	case "delete":
		err = l.containers.Remove(ctx, c.ID)
	}
	answered(err)
	if !r.succeeded(l, st, err) {
		return
	}
	switch st.Do {
	case "start":
		r.keep(l, c.ID)
	default:
		r.noProcess(c.ID)
		if st.Do == "delete" {
			if _, err := l.containers.Get(c.ID); err == nil {
				r.violate("%s was removed but exists", r.name(c.ID))
			}
		}
	}
}

func (r *run) noProcess(id string) {
	r.mu.Lock()
	p := r.procs[id]
	alive := p != nil && p.exit == nil
	r.mu.Unlock()
	if alive {
		r.violate("%s was ended but has a process", r.name(id))
	}
}

// checkReady compares a ready sandbox with the machine.
func (r *run) checkReady(l *life, st sandbox.Status) {
	f := l.sandboxes.Files(st)
	r.mu.Lock()
	var missing []string
	for _, path := range []string{f.Net, f.IPC, f.UTS} {
		if path != "" && !r.pins[l.rel(path)] {
			missing = append(missing, filepath.Base(path))
		}
	}
	if _, leased := r.leases[st.ID]; !leased && !st.HostNetwork() {
		missing = append(missing, "address")
	}
	if p := r.procs[st.ID]; st.Infra != nil && (p == nil || p.exit != nil) {
		missing = append(missing, "infra process")
	}
	if !r.cgroups[l.sandboxes.Cgroup(st)] {
		missing = append(missing, "cgroup")
	}
	r.mu.Unlock()
	if len(missing) > 0 && r.keeps(st.ID) {
		r.violate("%s is ready without its %s", r.name(st.ID), strings.Join(missing, " and "))
	}
}

func (r *run) keeps(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept[id]
}

// checkKept checks that what must go on does.
func (r *run) checkKept() {
	for id, kept := range r.kept {
		if !kept {
			continue
		}
		if st, err := r.life.sandboxes.Get(id); err == nil {
			if st.State != ready {
				r.violate("%s was ready and no client has stopped it, but it is %s: %s", r.name(id), st.State, st.Reason)
			}
			r.checkReady(r.life, st)
			continue
		}
		st, err := r.life.containers.Get(id)
		r.mu.Lock()
		p := r.procs[id]
		alive := p != nil && p.exit == nil
		r.mu.Unlock()
		if err != nil || !st.State.Live() || !alive {
			r.violate("%s was created and no client has ended it, but it is %q, its process alive: %v (%v)", r.name(id), st.State, alive, err)
		}
	}
}

// nothingRuns checks that a stopped sandbox has left nothing in the kernel.
func (r *run) nothingRuns(_ *life, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []string
	if _, ok := r.leases[id]; ok && !r.owed[id] {
		left = append(left, "its address")
	}
	for _, p := range r.procs {
		if p.exit == nil && (p.id == id || strings.HasSuffix(p.cgroup, p.sandbox+"/"+p.id) && strings.HasSuffix(p.sandbox, "-"+id[:12])) {
			left = append(left, "process "+r.names[p.id])
		}
	}
	for _, things := range []map[string]bool{r.pins, r.mounts, r.cgroups} {
		for path := range things {
			if strings.Contains(path, id[:12]) {
				left = append(left, path)
			}
		}
	}
	if len(left) > 0 {
		r.wrong = append(r.wrong, fmt.Sprintf("%s was stopped and left %v", r.names[id], left))
	}
}

// nothingIsLeft checks that a removed sandbox has left nothing at all.
func (r *run) nothingIsLeft(l *life, id string) {
	r.nothingRuns(l, id)
	if _, err := l.sandboxes.Get(id); err == nil {
		r.violate("%s was removed but exists", r.name(id))
	}
	for _, c := range l.containers.List(id) {
		// A container may be in creation that is about to find the sandbox gone.
		if c.State.Live() || c.State == containerstate.Exited {
			r.violate("%s was removed but has container %s", r.name(id), r.name(c.ID))
		}
	}
}

// calmTime is enough for everything to come to an end once nothing fails any more.
const calmTime = time.Hour

// finish waits until nothing changes any more and checks what is left: first with all pods, and
// then after their removal.
func (r *run) finish() {
	r.mu.Lock()
	r.calm = true
	r.mu.Unlock()
	r.disk.SetFull(false)
	if !r.broken() && r.unswept {
		r.life.shutDown()
		r.restartAfter(0)
	}
	if !r.broken() {
		time.Sleep(calmTime)
		r.settleDebts()
		r.checkKept()
		r.checkResources()
	}
	if !r.broken() {
		r.removeAll()
		r.checkEmpty()
	}
	if l := r.life; l != nil {
		l.kill()
		l.close()
		defer l.journal.Close()
	}
	r.calls.Wait()
	r.ended.Wait()
}

// checkKnown checks that some client knows what has ended, as huskd removes the rest by itself.
// After a loss of records it can't know which that is.
func (r *run) checkKnown(id string) {
	r.mu.Lock()
	known := r.known[id] || r.everLost
	r.mu.Unlock()
	if !known {
		r.violate("%s has ended and no client knows it, but it exists", r.name(id))
	}
}

// checkResources compares the machine's resources with the sandboxes and containers.
func (r *run) checkResources() {
	var pins, procs, cgroups []string
	leases := 0
	for _, st := range r.life.sandboxes.List() {
		switch st.State {
		case ready:
		case sandboxstate.Stopped:
			r.checkKnown(st.ID)
			continue
		default:
			r.violate("%s is %s for ever: %s", r.name(st.ID), st.State, st.Reason)
		}
		f := r.life.sandboxes.Files(st)
		for _, path := range []string{f.Net, f.IPC, f.UTS} {
			if path != "" {
				pins = append(pins, r.life.rel(path))
			}
		}
		if !st.HostNetwork() {
			leases++
		}
		if st.Infra != nil {
			procs = append(procs, st.ID)
		}
		cgroups = append(cgroups, r.life.sandboxes.Cgroup(st))
	}
	for _, st := range r.life.containers.List("") {
		switch st.State {
		case containerstate.Created, containerstate.Running:
			procs = append(procs, st.ID)
		case containerstate.Exited:
			r.checkKnown(st.ID)
		default:
			r.violate("%s is %s for ever: %s", r.name(st.ID), st.State, st.Message)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for path := range r.pins {
		if !slices.Contains(pins, path) {
			r.wrong = append(r.wrong, "a namespace is left without a sandbox: "+path)
		}
	}
	for id, p := range r.procs {
		if !slices.Contains(procs, id) {
			r.wrong = append(r.wrong, fmt.Sprintf("a process is left without a container: %s (%+v)", r.names[id], p.exit))
		}
	}
	for path := range r.cgroups {
		if !slices.Contains(cgroups, path) {
			r.wrong = append(r.wrong, "a cgroup is left without a sandbox: "+path)
		}
	}
	if missing := leases - len(r.leases); missing < 0 || missing > 0 && !r.everLost {
		r.wrong = append(r.wrong, fmt.Sprintf("%d addresses are leased to %d sandboxes", len(r.leases), leases))
	}
}

func (r *run) removeAll() {
	for _, st := range r.life.sandboxes.List() {
		if err := r.life.sandboxes.Remove(context.Background(), st.ID); err != nil {
			r.violate("%s can't be removed: %v", r.name(st.ID), err)
		}
	}
	// Containers whose sandboxes lost their records in a power loss.
	for _, st := range r.life.containers.List("") {
		if err := r.life.containers.Remove(context.Background(), st.ID); err != nil {
			r.violate("%s can't be removed: %v", r.name(st.ID), err)
		}
	}
}

// checkEmpty checks that nothing is left.
func (r *run) checkEmpty() {
	time.Sleep(2 * quarantine)
	r.settleDebts()
	for key := range r.life.journal.All("") {
		if !strings.HasPrefix(key, "aside/") {
			r.violate("a record is left: %s", key)
		}
	}
	for _, dir := range []string{"root/containers", "state/containers", "state/sandboxes"} {
		entries, _ := os.ReadDir(filepath.Join(r.life.dir, dir))
		for _, e := range entries {
			r.violate("a directory is left: %s/%s", dir, r.name(e.Name()))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for what, n := range map[string]int{
		"namespaces": len(r.pins), "mounts": len(r.mounts), "cgroups": len(r.cgroups), "processes": len(r.procs),
		"addresses": len(r.leases), "debts": len(r.owed), "holds of the image": r.life.holds,
	} {
		if n > 0 {
			r.wrong = append(r.wrong, fmt.Sprintf("%d %s are left", n, what))
		}
	}
	if usage := r.alloc.Usage(); usage[0].Used+usage[0].Quarantined > 0 {
		r.wrong = append(r.wrong, fmt.Sprintf("addresses are not released: %+v", usage))
	}
}
