package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/podlogs"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/api/serviceapi"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 30 * time.Second

// served is the API on a socket, with a real agent and owners. Pods in the host's namespaces whose
// image doesn't exist need nothing else.
type served struct {
	huskv1.HuskClient
	ctx   context.Context
	ended chan struct{} // closed by End
}

// handlers allows every runtime handler.
type handlers struct{}

func (handlers) Check(string, bool) error        { return nil }
func (handlers) RuntimeSandbox(string) bool      { return false }
func (handlers) Order(string) sandboxstate.Order { return "" }

// cgroups creates none.
type cgroups struct{}

func (cgroups) Parent(named string) (string, error)                      { return named, nil }
func (cgroups) Create(string, *runtimeapi.LinuxContainerResources) error { return nil }
func (cgroups) List() ([]string, error)                                  { return nil, nil }
func (cgroups) Remove(string) error                                      { return nil }

func serve(t *testing.T) served {
	t.Helper()
	hosttest.Root(t)
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	fail := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	records, _, err := journal.Open(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	images, err := image.Open(t.Context(), image.Config{Root: filepath.Join(dir, "images"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	facts, state := host.Facts{BootID: "this"}, filepath.Join(dir, "state")
	containers := container.New(container.Config{Root: dir, State: state, Journal: records, Host: facts, Log: log})
	var a *agent.Agent
	sandboxes := sandbox.New(sandbox.Config{
		Instance: pod.InstanceOf(dir), State: state, Journal: records, Containers: containers, Host: facts, Log: log,
		Handlers: handlers{}, Cgroups: cgroups{},
		Changed: func(st sandbox.Status) { a.SandboxChanged(st) },
	})
	a = agent.New(agent.Config{
		Journal: records, Sandboxes: sandboxes, Containers: containers, Images: images, Log: log,
		Volumes: volume.Volumes{Root: dir, State: state},
		Logs:    podlogs.Dirs{Root: filepath.Join(dir, "pods"), Pods: filepath.Join(dir, "logs"), Links: filepath.Join(dir, "links")},
		Node:    func() criconfig.Node { return criconfig.Node{Name: "n", Logs: filepath.Join(dir, "logs")} },
	})
	s := served{ended: make(chan struct{})}
	server := grpc.NewServer(grpc.UnaryInterceptor(Unary), grpc.StreamInterceptor(Stream))
	Register(server, Config{
		Services: &serviceapi.Server{},
		Agent:    a, Containers: containers, Sandboxes: sandboxes, Images: images, Runtime: "runc 1.1.5", Root: dir,
		Objects: objects.New(objects.Config{Journal: records, Deliver: func(source.Set, manifest.Objects) {}}),
		State:   state, Node: "n",
		Doctor: func(context.Context) []*huskv1.Check { return []*huskv1.Check{{Name: "kernel", Level: "ok"}} },
		End:    func() { close(s.ended) },
	})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		fail(conn.Close())
		server.Stop()
		a.Close()
		sandboxes.Close()
		containers.Close()
		fail(images.Close())
		fail(records.Close())
	})
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	s.HuskClient, s.ctx = huskv1.NewHuskClient(conn), ctx
	return s
}

// yaml returns the manifest of a pod whose image doesn't exist.
func yaml(name, labels string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {%s}}\nspec: {hostNetwork: true, hostIPC: true, containers: [{name: c, image: 'reg.test/none:1', imagePullPolicy: Never}]}\n", name, labels)
}

// run returns the events of Run, and its error.
func (s served) run(ctx context.Context, manifest string, wait bool) ([]*huskv1.RunEvent, error) {
	stream, err := s.Run(ctx, &huskv1.RunRequest{File: "pod.yaml", Manifest: []byte(manifest), Wait: wait})
	if err != nil {
		return nil, err
	}
	var events []*huskv1.RunEvent
	for {
		ev, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, ev)
	}
}

func want(t *testing.T, err error, code codes.Code, words string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), words) {
		t.Errorf("%v: want %v with %q", err, code, words)
	}
}

func TestPodsAreServed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	events, err := s.run(s.ctx, yaml("a", "")+"---\n"+yaml("b", ""), false)
	if err != nil || len(events) != 2 || events[0].Message != "admitted" || events[0].Unchanged || events[0].Phase != "Pending" {
		t.Fatalf("%v, %v", events, err)
	}
	if events, err = s.run(s.ctx, yaml("a", ""), false); err != nil || len(events) != 1 || !events[0].Unchanged || events[0].Message != "unchanged" {
		t.Errorf("%v, %v", events, err)
	}
	list, err := s.ListPods(s.ctx, &huskv1.ListPodsRequest{})
	if err != nil || len(list.Pods) != 2 || list.Pods[0].Source != "run" || !list.Pods[0].HostNetwork || len(list.Pods[0].Containers) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	_, err = s.Remove(s.ctx, &huskv1.RemoveRequest{Name: "a"})
	want(t, err, codes.FailedPrecondition, "pod default/a is running")
	if r, err := s.Stop(s.ctx, &huskv1.StopRequest{Name: "a", HasGrace: true, GraceNs: -1}); err != nil || r.Namespace != "default" || r.Name != "a" {
		t.Errorf("%v, %v", r, err)
	}
	for all, n := range map[bool]int{false: 1, true: 2} {
		if list, err := s.ListPods(s.ctx, &huskv1.ListPodsRequest{All: all}); err != nil || len(list.Pods) != n {
			t.Errorf("all %t: %v, %v", all, list, err)
		}
	}
	for _, r := range []*huskv1.RemoveRequest{{Name: "a"}, {Name: "b", Force: true}} {
		if _, err := s.Remove(s.ctx, r); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
		_, err := s.Remove(s.ctx, r)
		want(t, err, codes.NotFound, "husk ps -a")
	}
}

// The errors of all pods in a file are reported, not only the first.
func TestRunReportsEveryError(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if _, err := s.run(s.ctx, yaml("a", "")+"---\n"+yaml("b", ""), false); err != nil {
		t.Fatal(err)
	}
	events, err := s.run(s.ctx, yaml("a", "x: z")+"---\n"+yaml("b", "x: z")+"---\n"+yaml("c", ""), false)
	want(t, err, codes.AlreadyExists, "pod default/a exists with another manifest")
	want(t, err, codes.AlreadyExists, "pod default/b exists with another manifest")
	if len(events) != 1 || events[0].Name != "c" {
		t.Errorf("events of the valid pod: %v", events)
	}
	_, err = s.run(s.ctx, "kind: Pod", false)
	want(t, err, codes.InvalidArgument, "pod.yaml")
}

// A wait ends when the pod can no longer become ready.
func TestRunWaits(t *testing.T) {
	t.Parallel()
	s := serve(t)
	// No registry is there, but one may come.
	pulls := strings.NewReplacer("reg.test", "127.0.0.1:1", "Never", "IfNotPresent")
	stream, err := s.Run(s.ctx, &huskv1.RunRequest{File: "-", Manifest: []byte(pulls.Replace(yaml("a", ""))), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	for message := ""; !strings.HasPrefix(message, "ErrImagePull: "); {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		message = ev.Message
	}
	if _, err := s.Stop(s.ctx, &huskv1.StopRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	want(t, err, codes.Aborted, "was stopped during the wait")
	short, cancel := context.WithTimeout(s.ctx, 50*time.Millisecond)
	defer cancel()
	_, err = s.run(short, pulls.Replace(yaml("b", "")), true)
	want(t, err, codes.DeadlineExceeded, "")
	// An image that is never pulled doesn't come by itself: the wait is over.
	events, err := s.run(s.ctx, yaml("c", ""), true)
	if err != nil {
		t.Fatal(err)
	}
	if last := events[len(events)-1]; !last.Settled || last.Phase != "Failed" || !strings.HasPrefix(last.Message, "ErrImageNeverPull: ") {
		t.Errorf("the last event is %v", last)
	}
}

func TestContainersThatAreNotRunning(t *testing.T) {
	t.Parallel()
	s := serve(t)
	two := strings.Replace(yaml("two", ""), "[{name: c,", "[{name: d, image: 'reg.test/none:1', imagePullPolicy: Never}, {name: c,", 1)
	if _, err := s.run(s.ctx, yaml("one", "")+"---\n"+two, false); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pod, container string
		code           codes.Code
		words          string
	}{
		{"one", "", codes.FailedPrecondition, "container c of pod default/one has not started: "},
		{"one", "x", codes.NotFound, `has no container "x": it has c`},
		{"two", "", codes.InvalidArgument, "choose one with -c"},
		{"two", "d", codes.FailedPrecondition, "container d of pod default/two"},
		{"none", "", codes.NotFound, `no pod "none"`},
	} {
		logs, err := s.Logs(s.ctx, &huskv1.LogsRequest{Name: c.pod, Container: c.container})
		if err == nil {
			_, err = logs.Recv()
		}
		want(t, err, c.code, c.words)
		exec, err := s.Exec(s.ctx)
		if err == nil {
			err = exec.Send(&huskv1.SessionInput{Of: &huskv1.SessionInput_Start{Start: &huskv1.SessionStart{Name: c.pod, Container: c.container, Args: []string{"sh"}}}})
		}
		if err == nil {
			_, err = exec.Recv()
		}
		want(t, err, c.code, c.words)
	}
	attach, err := s.Attach(s.ctx)
	if err == nil {
		err = attach.Send(&huskv1.SessionInput{Of: &huskv1.SessionInput_CloseStdin{CloseStdin: true}})
	}
	if err == nil {
		_, err = attach.Recv()
	}
	want(t, err, codes.InvalidArgument, "must be its start")
}

func TestInspect(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if _, err := s.run(s.ctx, yaml("a", "l: 'a<b'"), false); err == nil {
		t.Error("an invalid label is accepted")
	}
	if _, err := s.run(s.ctx, yaml("a", ""), false); err != nil {
		t.Fatal(err)
	}
	r, err := s.HuskClient.Inspect(s.ctx, &huskv1.InspectRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{`"Name": "default/a"`, `"SandboxKey": ""`, `"Networks": {}`, `"Containers": [`, `"imagePullPolicy": "Never"`} {
		if !strings.Contains(string(r.Json), words) {
			t.Errorf("inspect lacks %s:\n%s", words, r.Json)
		}
	}
	_, err = s.HuskClient.Inspect(s.ctx, &huskv1.InspectRequest{Name: "none"})
	want(t, err, codes.NotFound, "husk ps -a")
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if _, err := s.run(s.ctx, yaml("a", ""), false); err != nil {
		t.Fatal(err)
	}
	stream, err := s.Shutdown(s.ctx, &huskv1.ShutdownRequest{BudgetNs: -1})
	if err != nil {
		t.Fatal(err)
	}
	ev, err := stream.Recv()
	if err != nil || ev.Name != "a" || ev.Message != "stopped" {
		t.Errorf("%v, %v", ev, err)
	}
	if _, err = stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	<-s.ended
}

// TestShutdownWithoutLeaving: a node that can't leave stops no pods.
func TestShutdownWithoutLeaving(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if _, err := s.run(s.ctx, yaml("a", ""), false); err != nil {
		t.Fatal(err)
	}
	stream, err := s.Shutdown(s.ctx, &huskv1.ShutdownRequest{Leave: true})
	if err == nil {
		_, err = stream.Recv()
	}
	want(t, err, codes.FailedPrecondition, "nothing to give back")
	select {
	case <-s.ended:
		t.Error("huskd has ended")
	default:
	}
}

func TestVersionAndDoctor(t *testing.T) {
	t.Parallel()
	s := serve(t)
	v, err := s.HuskClient.Version(s.ctx, &huskv1.VersionRequest{})
	if err != nil || v.Runtime != "runc 1.1.5" || v.Pid == 0 || v.Root == "" || v.State == "" {
		t.Errorf("%v, %v", v, err)
	}
	d, err := s.HuskClient.Doctor(s.ctx, &huskv1.DoctorRequest{})
	if err != nil || len(d.Checks) != 1 || d.Checks[0].Name != "kernel" {
		t.Errorf("%v, %v", d, err)
	}
}

// The kind of an error becomes the code, and its message is kept.
func TestErrorsBecomeStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{nil, codes.OK},
		{errors.New("x"), codes.Unknown},
		{fmt.Errorf("pod p: %w", errdefs.ErrNotFound.WithMessage("x")), codes.NotFound},
		{errors.Join(errors.New("x"), errdefs.ErrAlreadyExists.WithMessage("y")), codes.AlreadyExists},
		{errdefs.ErrUnavailable, codes.Unavailable},
		{fmt.Errorf("pod p: %w", context.Canceled), codes.Canceled},
		{fmt.Errorf("pod p: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{status.Error(codes.Aborted, "x"), codes.Aborted},
	} {
		got := toStatus(c.err)
		if status.Code(got) != c.code {
			t.Errorf("%v becomes %v, want %v", c.err, got, c.code)
		}
		if _, given := status.FromError(c.err); c.err != nil && !given && status.Convert(got).Message() != c.err.Error() {
			t.Errorf("%q becomes %q", c.err, status.Convert(got).Message())
		}
	}
}
