package shim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
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

	"encoding/json"

	task2 "github.com/containerd/containerd/api/runtime/task/v2"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/ocitest"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// The test binary is also a shim, under the name containerd-shim-machine-v2. It does what Kata's
// shims do that differs from those of runc and gVisor, version by version, as the files in its
// directory say. Its virtual machine is a process that sleeps. What it has seen it writes to files
// there.
const machineShim = "containerd-shim-machine-v2"

// Traits of shims, which are files in the shim's directory.
const (
	noVersion     = "no-version"    // -v is a mistake (Kata 1.13, 2.0, 2.1)
	silentStart   = "silent-start"  // without -publish-binary, start complains and exits with 0 (Kata in Rust)
	lateConnect   = "late-connect"  // Connect fails before Create (Kata in Rust)
	rawOptions    = "raw-options"   // the options' path is read from the third byte on (Kata in Rust)
	ownCgroup     = "own-cgroup"    // shim and machine move to the sandbox's cgroup (sandbox_cgroup_only)
	slaveMounts   = "slave-mounts"  // the shim has a mount namespace of its own (Kata 3.3)
	keepsMachine  = "keeps-machine" // the machine of a sandbox that never started stays (Kata 1.13)
	deafToSignals = "deaf-to-kill"  // no answer to Kill
	lateAnswer    = "late-answer"   // Start of a container answers after its exit
	seenDelete    = "seen-delete"   // the shim's program was run to delete what a shim has left
	seenTaskEnd   = "seen-task-end" // the sandbox's task was deleted
	seenProblem   = "seen-problem"  // what the shim didn't expect
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == machineShim {
		if err := runMachineShim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// traits is the directory of a shim's program.
type traits string

func (d traits) has(trait string) bool {
	_, err := os.Stat(filepath.Join(string(d), trait))
	return err == nil
}

func (d traits) note(what, content string) {
	f, err := os.OpenFile(filepath.Join(string(d), what), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, _ = fmt.Fprintln(f, content)
		_ = f.Close()
	}
}

func runMachineShim() error {
	dir := traits(filepath.Dir(os.Args[0]))
	var id, namespace, address, publish, bundleDir string
	var version bool
	flags := flag.NewFlagSet(machineShim, flag.ContinueOnError)
	flags.StringVar(&id, "id", "", "")
	flags.StringVar(&namespace, "namespace", "", "")
	flags.StringVar(&address, "address", "", "")
	flags.StringVar(&publish, "publish-binary", "", "")
	flags.StringVar(&bundleDir, "bundle", "", "")
	if !dir.has(noVersion) {
		flags.BoolVar(&version, "v", false, "")
	}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(`machine: id: "io.containerd.machine.v2", version: 1.13.0-alpha0, commit: x`)
		return nil
	}
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if version {
		fmt.Println("Version: 1.13.0-alpha0")
		return nil
	}
	socket := filepath.Join(string(dir), "s-"+id[max(0, len(id)-12):])
	switch flags.Arg(0) {
	case "start":
		if publish == "" && dir.has(silentStart) {
			fmt.Fprintln(os.Stderr, "Argument is empty: publish-binary")
			return nil
		}
		args := append([]string{os.Args[0]}, "-namespace", namespace, "-id", id)
		if dir.has(slaveMounts) {
			args = append([]string{"unshare", "--mount", "--propagation", "slave"}, args...)
		}
		ready, up, err := os.Pipe()
		if err != nil {
			return err
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.ExtraFiles = []*os.File{up}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		_ = up.Close()
		_, _ = ready.Read(make([]byte, 1)) // until it listens
		fmt.Print("unix://" + socket)
		return nil
	case "delete":
		dir.note(seenDelete, id)
		return nil
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	s := &machine{dir: dir, id: id, tasks: map[string]*guest{}}
	task2.RegisterTTRPCTaskService(server, s)
	_ = os.NewFile(3, "ready").Close()
	return server.Serve(context.Background(), l)
}

// machine is the task service of the shim.
type machine struct {
	task2.TTRPCTaskService
	dir traits
	id  string

	mu    sync.Mutex
	vmm   *exec.Cmd
	tasks map[string]*guest
}

// guest is a container in the machine.
type guest struct {
	req     *task2.CreateTaskRequest
	spec    specs.Spec
	started bool
	code    uint32
	ended   chan struct{}
}

func (g *guest) end(code uint32) {
	select {
	case <-g.ended:
	default:
		g.code = code
		close(g.ended)
	}
}

func (s *machine) find(id string) (*guest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, ok := s.tasks[id]; ok {
		return g, nil
	}
	return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
}

func (s *machine) Connect(context.Context, *task2.ConnectRequest) (*task2.ConnectResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir.has(lateConnect) && s.vmm == nil {
		return nil, errors.New("runtime not ready")
	}
	return &task2.ConnectResponse{ShimPid: uint32(os.Getpid())}, nil
}

func (s *machine) Create(_ context.Context, req *task2.CreateTaskRequest) (*task2.CreateTaskResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &guest{req: req, ended: make(chan struct{})}
	raw, err := os.ReadFile(filepath.Join(req.GetBundle(), bundle.SpecFile))
	if err == nil {
		err = json.Unmarshal(raw, &g.spec)
	}
	if err != nil {
		return nil, err
	}
	_ = g.spec.Linux.Resources.CPU // panics without resources, as each Kata in Go
	if options := req.GetOptions(); options != nil && s.dir.has(rawOptions) {
		if _, err := os.Stat(string(options.GetValue()[2:])); err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
	}
	if _, err := os.Stat(filepath.Join(g.spec.Root.Path, "pause")); err != nil {
		// As the agent in the guest, whose root it is.
		_ = os.MkdirAll(filepath.Join(g.spec.Root.Path, "proc"), 0o755)
		return nil, fmt.Errorf("the root file system is empty: %w", err)
	}
	if s.vmm == nil {
		s.vmm = exec.Command("sleep", "1000000")
		s.vmm.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := s.vmm.Start(); err != nil {
			return nil, err
		}
		if s.dir.has(ownCgroup) {
			for _, mount := range host.Probe("/").Cgroup.Mounts {
				group := filepath.Join(mount, g.spec.Linux.CgroupsPath)
				_ = os.MkdirAll(group, 0o755)
				for _, pid := range []int{os.Getpid(), s.vmm.Process.Pid} {
					_ = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
				}
			}
		}
	}
	s.tasks[req.GetID()] = g
	return &task2.CreateTaskResponse{Pid: uint32(s.vmm.Process.Pid)}, nil
}

func (s *machine) Start(_ context.Context, req *task2.StartRequest) (*task2.StartResponse, error) {
	g, err := s.find(req.GetID())
	if err != nil {
		return nil, err
	}
	g.started = true
	if out, err := os.OpenFile(g.req.GetStdout(), os.O_WRONLY, 0); err == nil {
		_, _ = fmt.Fprintln(out, "from the guest")
		_ = out.Close()
	}
	if slices.Contains(g.spec.Process.Args, "now") {
		g.end(0)
	} else if s.dir.has(lateAnswer) && req.GetID() != s.id {
		g.end(3)
		time.Sleep(300 * time.Millisecond)
	}
	return &task2.StartResponse{}, nil
}

func (s *machine) State(_ context.Context, req *task2.StateRequest) (*task2.StateResponse, error) {
	g, err := s.find(req.GetID())
	if err != nil {
		return nil, err
	}
	status := tasktypes.Status_CREATED
	if g.started {
		status = tasktypes.Status_RUNNING
	}
	select {
	case <-g.ended:
		status = tasktypes.Status_STOPPED
	default:
	}
	return &task2.StateResponse{ID: req.GetID(), Status: status}, nil
}

func (s *machine) Wait(_ context.Context, req *task2.WaitRequest) (*task2.WaitResponse, error) {
	g, err := s.find(req.GetID())
	if err != nil {
		return nil, err
	}
	<-g.ended
	return &task2.WaitResponse{ExitStatus: g.code, ExitedAt: timestamppb.Now()}, nil
}

func (s *machine) Kill(ctx context.Context, req *task2.KillRequest) (*emptypb.Empty, error) {
	g, err := s.find(req.GetID())
	if err != nil {
		return nil, err
	}
	if s.dir.has(deafToSignals) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	// The machine answers, so it must still run.
	if s.vmm.Process.Signal(syscall.Signal(0)) != nil {
		s.dir.note(seenProblem, "Kill after the machine's end")
	}
	g.end(128 + req.GetSignal())
	return &emptypb.Empty{}, nil
}

func (s *machine) Delete(_ context.Context, req *task2.DeleteRequest) (*task2.DeleteResponse, error) {
	g, err := s.find(req.GetID())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, req.GetID())
	if req.GetID() == s.id {
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.vmm.Process.Pid)); err != nil || strings.Contains(string(state), ") Z ") {
			s.dir.note(seenProblem, "Delete after the machine's end")
		}
		if g.started || !s.dir.has(keepsMachine) {
			_ = s.vmm.Process.Kill()
			_ = s.vmm.Wait()
		}
		s.dir.note(seenTaskEnd, s.id)
	}
	return &task2.DeleteResponse{ExitStatus: g.code, ExitedAt: timestamppb.Now()}, nil
}

func (s *machine) Shutdown(context.Context, *task2.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tasks) == 0 {
		time.AfterFunc(10*time.Millisecond, func() { os.Exit(0) })
	}
	return &emptypb.Empty{}, nil
}

// machineNode is a driver whose handler is the shim with traits.
type machineNode struct {
	*Driver
	t   *testing.T
	dir traits
	h   Handler
}

// newMachineNode finds the shim as huskd does.
func newMachineNode(t *testing.T, has ...string) *machineNode {
	t.Helper()
	cfg := config(t)
	dir, err := os.MkdirTemp("", "machine") // short, for the sockets in it
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	must(t, err)
	must(t, os.Symlink(self, filepath.Join(dir, machineShim)))
	settings := filepath.Join(dir, "configuration.toml")
	must(t, os.WriteFile(settings, nil, 0o644))
	for _, trait := range has {
		must(t, os.WriteFile(filepath.Join(dir, trait), nil, 0o644))
	}
	found := Find(t.Context(), cfg, map[string]Setting{"machine": {Path: filepath.Join(dir, machineShim), Config: settings}})
	h, err := found.Get("machine")
	must(t, err)
	if h.Version != "1.13.0-alpha0" {
		t.Errorf("its version is %q", h.Version)
	}
	_ = os.Remove(filepath.Join(dir, seenTaskEnd))
	n := &machineNode{Driver: New(cfg, found), t: t, dir: traits(dir), h: h}
	t.Cleanup(func() {
		if raw, err := os.ReadFile(filepath.Join(dir, seenProblem)); err == nil {
			t.Errorf("the shim has seen: %s", raw)
		}
	})
	return n
}

// create creates a container; in the sandbox of that ID, if it isn't empty.
func (n *machineNode) create(sandbox string) string {
	n.t.Helper()
	id, dir := pod.NewID(), n.t.TempDir()
	n.t.Cleanup(func() {
		must(n.t, n.Delete(context.Background(), id))
		for _, trace := range ocitest.Traces(n.cfg.Host.Cgroup, id, "/"+id, n.cfg.StateDir, dir) {
			n.t.Errorf("left behind: %s", trace)
		}
		if left := pidfd.FindByEnv(ownerVariable + id); len(left) > 0 {
			n.t.Errorf("left running: %v", left)
		}
	})
	must(n.t, bundle.WriteProbe(dir, "/"+id, "", "/pause"))
	if sandbox != "" {
		file := filepath.Join(dir, bundle.SpecFile)
		raw, err := os.ReadFile(file)
		must(n.t, err)
		var spec specs.Spec
		must(n.t, json.Unmarshal(raw, &spec))
		spec.Annotations = map[string]string{annotationType: typeContainer, annotationSandbox: sandbox}
		raw, err = json.Marshal(spec)
		must(n.t, err)
		must(n.t, os.WriteFile(file, raw, 0o600))
	}
	_, err := n.Create(n.t.Context(), oci.Create{ID: id, Bundle: dir, Handler: "machine"})
	must(n.t, err)
	return id
}

func (n *machineNode) machines(id string) int { return len(pidfd.FindByEnv(ownerVariable + id)) }

// TestMachine runs a pod with shims that do what those of Kata do: a sandbox and a container, which
// are stopped and deleted.
func TestMachine(t *testing.T) {
	hosttest.Root(t)
	for name, has := range map[string][]string{
		"none":          nil,
		noVersion:       {noVersion},
		silentStart:     {silentStart},
		lateConnect:     {lateConnect},
		rawOptions:      {rawOptions},
		ownCgroup:       {ownCgroup},
		slaveMounts:     {slaveMounts},
		"Kata in Rust":  {silentStart, lateConnect, rawOptions, ownCgroup, slaveMounts},
		"Kata 1.13":     {noVersion, keepsMachine},
		"huskd restart": {silentStart, lateConnect, ownCgroup},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newMachineNode(t, has...)
			sandbox := n.create("")
			must(t, n.Start(t.Context(), sandbox))
			id := n.create(sandbox)
			must(t, n.Start(t.Context(), id))
			if name == "huskd restart" {
				before := n.Driver
				n.Driver = New(before.cfg, before.handlers)
				t.Cleanup(func() {
					must(t, before.dropWatch(context.Background(), id))
					must(t, before.dropWatch(context.Background(), sandbox))
				})
			}
			must(t, n.KillAll(t.Context(), id))
			if exit, err := n.Wait(t.Context(), id); err != nil || exit.Code != 128+int(unix.SIGKILL) || exit.Lost {
				t.Errorf("exit %+v, %v", exit, err)
			}
			must(t, n.Delete(t.Context(), id))
			must(t, n.Delete(t.Context(), sandbox))
			if !n.dir.has(seenTaskEnd) {
				t.Error("the sandbox was never deleted in the shim")
			}
			if n.dir.has(seenDelete) {
				t.Error("the shim's program had to delete what an orderly shim left")
			}
		})
	}
}

// TestMachineEndsWhileItStarts checks that Start succeeds although the container's exit arrives
// before the shim's answer.
func TestMachineEndsWhileItStarts(t *testing.T) {
	hosttest.Root(t)
	n := newMachineNode(t, lateAnswer)
	sandbox := n.create("")
	must(t, n.Start(t.Context(), sandbox))
	id := n.create(sandbox)
	must(t, n.Start(t.Context(), id))
	if exit, err := n.Wait(t.Context(), id); err != nil || exit.Code != 3 || exit.Lost {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

// TestMachineNeverStarted checks that the virtual machine of a sandbox that was created and never
// started is killed.
func TestMachineNeverStarted(t *testing.T) {
	hosttest.Root(t)
	n := newMachineNode(t, keepsMachine)
	sandbox := n.create("")
	must(t, n.Delete(t.Context(), sandbox))
	if !n.dir.has(seenDelete) || n.machines(sandbox) > 0 {
		t.Errorf("processes left: %d", n.machines(sandbox))
	}
}

// TestMachineShimFails checks that nothing is left of a pod whose shim is killed, stopped or
// doesn't answer.
func TestMachineShimFails(t *testing.T) {
	hosttest.Root(t)
	for name, has := range map[string][]string{
		"killed": nil, "killed in its cgroup": {ownCgroup}, "stopped": nil, "stopped in its cgroup": {ownCgroup}, "deaf": {deafToSignals},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newMachineNode(t, has...)
			sandbox := n.create("")
			must(t, n.Start(t.Context(), sandbox))
			id := n.create(sandbox)
			must(t, n.Start(t.Context(), id))
			c, err := n.find(sandbox)
			must(t, err)
			switch {
			case strings.HasPrefix(name, "killed"):
				must(t, pidfd.Signal(c.Shim, unix.SIGKILL))
				if exit, err := n.Wait(t.Context(), id); err != nil || !exit.Lost {
					t.Errorf("exit %+v, %v", exit, err)
				}
			case strings.HasPrefix(name, "stopped"):
				must(t, pidfd.Signal(c.Shim, unix.SIGSTOP))
			}
			began := time.Now()
			must(t, n.Delete(t.Context(), id))
			must(t, n.Delete(t.Context(), sandbox))
			slog.Info("deleted", "shim", name, "after", time.Since(began))
			if left := n.machines(sandbox); left > 0 {
				t.Errorf("%d processes are left", left)
			}
			if !n.dir.has(seenDelete) {
				t.Error("the shim's program wasn't asked to delete what the shim left")
			}
		})
	}
}

// TestSilentStart checks that the error says why a shim printed no address.
func TestSilentStart(t *testing.T) {
	hosttest.Root(t)
	path := filepath.Join(t.TempDir(), "containerd-shim-silent-v2")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\necho the reason >&2\n"), 0o755))
	_, err := Handler{Path: path, Conmon: conmon.Locate("conmon")}.launch(t.Context(), place{dir: t.TempDir()}, "id")
	if err == nil || err.Error() != "the shim prints no address: the reason" {
		t.Errorf("got %v", err)
	}
}
