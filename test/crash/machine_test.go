// Package crash runs random schedules on real kernels: clients create and remove pods through CRI
// while huskd, its helpers and its containers are killed, disks are full or read-only, file
// descriptors run out and CNI plugins hang. A pod that the schedule never touches must survive all
// of it, and nothing may be left at the end.
package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

func TestMain(m *testing.M) { node.Main(m) }

const image = "localhost/web:1"

// machine is a node on which a schedule runs.
type machine struct {
	*node.Node
	t         *testing.T
	r         *rand.Rand
	d         *node.Daemon
	flags     []node.Option
	cri       runtimeapi.RuntimeServiceClient
	calls     sync.WaitGroup
	places    chan struct{} // limits the number of requests in flight
	began     time.Time
	did       map[string]int
	log       []string
	bystander bystander
	hang      string // while this file exists, the CNI plugin hangs
	hangs     bool
}

// bystander is the pod that the schedule never touches.
type bystander struct{ sandbox, container, pid string }

// rootSize is the size of huskd's disk, a tmpfs, so that it can be full while the host's disk
// isn't.
const rootSize = "160m"

// newMachine starts a machine whose huskd has an image and runs a pod.
func newMachine(t *testing.T, seed uint64, withCNI bool) *machine {
	m := &machine{
		Node: node.New(t), t: t, r: rand.New(rand.NewPCG(seed, 1)),
		places: make(chan struct{}, 6), began: time.Now(), did: map[string]int{},
	}
	if err := os.MkdirAll(m.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	m.Must("mount", "-t", "tmpfs", "-o", "size="+rootSize, "disk", m.Root)
	if withCNI {
		m.setUpCNI()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	built, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web})
	if err != nil {
		t.Fatal(err)
	}
	var archive strings.Builder
	if err := testimage.WriteArchive(&archive, testimage.Named{Image: built, Names: []string{image}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(m.Dir, "web.tar")
	if err := os.WriteFile(path, []byte(archive.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	m.d = m.Huskd(m.flags...)
	m.MustHusk("image", "load", path)
	conn, err := grpc.NewClient("unix://"+m.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	m.cri = runtimeapi.NewRuntimeServiceClient(conn)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("schedule:\n%s", strings.Join(m.log, "\n"))
		}
	})
	m.startBystander()
	return m
}

// setUpCNI gives the machine a network whose plugin can be made to hang.
func (m *machine) setUpCNI() {
	bin := filepath.Join(m.Dir, "bin")
	m.hang = filepath.Join(m.Dir, "hang")
	for path, content := range map[string]string{
		filepath.Join(bin, "moody"): "#!/bin/sh\n[ -e " + m.hang + " ] && exec sleep 1000\nexec /usr/lib/cni/ptp\n",
		filepath.Join(m.CNI, "10-moody.conflist"): `{"cniVersion":"1.0.0","name":"moody","plugins":[{"type":"moody","ipam":
			{"type":"host-local","dataDir":"` + filepath.Join(m.Dir, "leases") + `","ranges":[[{"subnet":"10.77.0.0/16"}]]}}]}`,
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			m.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			m.t.Fatal(err)
		}
	}
	m.flags = append(m.flags, node.Flags("--cni-bin-dir", bin+",/usr/lib/cni"))
}

func (m *machine) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf("%8.3f ", time.Since(m.began).Seconds())+fmt.Sprintf(format, args...))
}

func podConfig(name string, attempt int) *runtimeapi.PodSandboxConfig {
	pid := runtimeapi.NamespaceMode_CONTAINER
	if strings.HasPrefix(name, "shared") {
		pid = runtimeapi.NamespaceMode_POD
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "crash", Uid: name, Attempt: uint32(attempt)},
		Labels:   map[string]string{"app": name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: pid},
		}},
	}
}

func containerConfig() *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
		Image:    &runtimeapi.ImageSpec{Image: image},
		Command:  []string{"/bin/sleep", "100000"},
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}
}

// up creates a pod with one running container.
func (m *machine) up(ctx context.Context, name string, attempt int) (sandbox, container string, err error) {
	config := podConfig(name, attempt)
	sb, err := m.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return "", "", err
	}
	c, err := m.cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), Config: containerConfig(), SandboxConfig: config})
	if err != nil {
		return sb.GetPodSandboxId(), "", err
	}
	_, err = m.cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
	return sb.GetPodSandboxId(), c.GetContainerId(), err
}

func (m *machine) startBystander() {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	sandbox, container, err := m.up(ctx, "bystander", 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.bystander = bystander{sandbox: sandbox, container: container}
	if m.bystander.pid = m.pidOf(container); m.bystander.pid == "" {
		m.t.Fatal("the bystander has no process")
	}
}

// pidOf returns the PID and start time of a container's process. The start time tells it from a
// later process with the same PID.
func (m *machine) pidOf(container string) string {
	for _, p := range m.processes() {
		if p.cgroup != "" && strings.Contains(p.cgroup, container) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
			if err != nil {
				continue
			}
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
			return fmt.Sprintf("%d/%s", p.pid, fields[19])
		}
	}
	return ""
}

// process is a process on the machine.
type process struct {
	pid           int
	name, command string
	cgroup        string
}

// processes returns the machine's processes that schedules may kill.
func (m *machine) processes() (list []process) {
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", m.Pid()))
	if err != nil {
		m.t.Fatal(err)
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		status, err := os.ReadFile(dir + "/cgroup")
		if err != nil || !m.belongs(dir, want, string(status)) {
			continue
		}
		p := process{cgroup: string(status)}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		comm, _ := os.ReadFile(dir + "/comm")
		command, _ := os.ReadFile(dir + "/cmdline")
		p.name, p.command = strings.TrimSpace(string(comm)), strings.ReplaceAll(string(command), "\x00", " ")
		list = append(list, p)
	}
	return list
}

// belongs reports whether a process runs on the machine or in one of its containers.
func (m *machine) belongs(dir, pidNamespace, cgroup string) bool {
	ns, err := os.Readlink(dir + "/ns/pid")
	return err == nil && (ns == pidNamespace || strings.Contains(cgroup, m.Instance().Cgroup()+"/"))
}

// kill kills one of the processes with these names, but none of the bystander's.
func (m *machine) kill(names ...string) {
	var some []process
	for _, p := range m.processes() {
		if slices.Contains(names, p.name) && p.pid != m.Pid() && !strings.Contains(p.command+p.cgroup, m.bystander.container) && !strings.Contains(p.command+p.cgroup, m.bystander.sandbox) {
			some = append(some, p)
		}
	}
	if len(some) == 0 {
		return
	}
	p := some[m.r.IntN(len(some))]
	m.note("kill %s %d", p.name, p.pid)
	m.did["kill "+p.name]++
	_ = syscall.Kill(p.pid, syscall.SIGKILL)
}

// limitFiles sets huskd's limit of file descriptors to what it has open, or resets it.
func (m *machine) limitFiles(none bool) {
	limit := unix.Rlimit{Cur: 65536, Max: 65536}
	if none {
		open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.d.Pid()))
		limit.Cur = uint64(len(open) + m.r.IntN(4))
	}
	_ = unix.Prlimit(m.d.Pid(), unix.RLIMIT_NOFILE, &limit, nil)
}

// fill fills huskd's disk up to a few bytes, or empties it again.
func (m *machine) fill(full bool) {
	path := m.Path(filepath.Join(m.Root, "filler"))
	if !full {
		_ = os.Remove(path)
		return
	}
	f, err := os.Create(path)
	if err != nil {
		return
	}
	defer f.Close()
	for size := 1 << 20; size >= 512; size /= 2 {
		for {
			if _, err := f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
}

// restart starts huskd after it has exited.
func (m *machine) restart() { m.d = m.Huskd(m.flags...) }

// readOnly starts huskd on a read-only disk. It must report that and exit, or serve what it can.
func (m *machine) readOnly() {
	m.d.Kill()
	if r := m.Run("mount", "-o", "remount,bind,ro", m.Root); r.Code != 0 {
		m.note("the disk can't be made read-only: %s", strings.TrimSpace(r.Stderr))
		m.restart()
		return
	}
	d := m.Launch(m.flags...)
	if d.Wait(time.Duration(m.r.IntN(1000))*time.Millisecond) && (d.Code() == 0 || !strings.Contains(d.Log(), "read-only")) {
		m.t.Errorf("on a read-only disk huskd ends with %d and these words:\n%s", d.Code(), d.Log())
	}
	d.Kill()
	m.Must("mount", "-o", "remount,bind,rw", m.Root)
	m.restart()
}

// checkBystander fails the test unless the untouched pod is as it was.
func (m *machine) checkBystander() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	st, err := m.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: m.bystander.container}, grpc.WaitForReady(true))
	if err != nil || st.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		m.t.Errorf("the container that the schedule never touched is %v (%v): %s %s", st.GetStatus().GetState(), err, st.GetStatus().GetReason(), st.GetStatus().GetMessage())
	}
	sb, err := m.cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: m.bystander.sandbox})
	if err != nil || sb.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		m.t.Errorf("the sandbox that the schedule never touched is %v (%v)", sb.GetStatus().GetState(), err)
	}
	if pid := m.pidOf(m.bystander.container); pid != m.bystander.pid {
		m.t.Errorf("the process that the schedule never touched is %q, and was %s", pid, m.bystander.pid)
	}
	if ip := sb.GetStatus().GetNetwork().GetIp(); ip != "" {
		if out, err := exec.Command("nsenter", "--net="+m.Net(), "ping", "-c1", "-W5", ip).CombinedOutput(); err != nil {
			m.t.Errorf("the pod that the schedule never touched doesn't answer: %s", out)
		}
	}
}

// empty removes everything and fails the test if anything can't be removed.
func (m *machine) empty() {
	m.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := m.removeAll()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("pods can't be removed: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	// The DELs owed to plugins succeed by the next start at the latest.
	m.d.Stop()
	m.restart()
	node.Eventually(m.t, time.Minute, func() string {
		if out := m.MustHusk("net", "debts", "-o", "json"); strings.Contains(out, `"owed": true`) {
			return "the network owes\n" + out
		}
		return ""
	})
	m.d.Stop()
	m.Must("umount", m.Root)
	m.NothingLeft()
}

func (m *machine) removeAll() error {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	list, err := m.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	var errs []error
	for _, sb := range list.GetItems() {
		_, stop := m.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sb.GetId()})
		_, remove := m.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.GetId()})
		errs = append(errs, stop, remove)
	}
	return errors.Join(errs...)
}
