package huskdtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	huskv1 "github.com/huskd/husk/api/v1"
)

// Fixture describes the huskd that Conformance tests.
type Fixture struct {
	Client    huskv1.HuskClient
	System    huskv1.SystemClient
	Manifests huskv1.ManifestsClient
	Storage   huskv1.StorageClient
	Debugging huskv1.DebuggingClient
	// Manifest describes one pod in the namespace default, named Pod, with one container that runs
	// until it is stopped. It reads standard input and has no terminal.
	Manifest []byte
	Pod      string
	// Cat copies its input to its output; Exit7 exits with 7; Both writes "to stdout" and "to
	// stderr", each with a newline; Missing doesn't exist.
	Cat, Exit7, Both, Missing []string
}

// conformanceTimeout bounds the whole test, and each session.
const conformanceTimeout = time.Minute

// Conformance tests the behaviour of huskd that husk relies on. The pod must not exist before, and
// is removed.
func Conformance(t *testing.T, f Fixture) {
	ctx, cancel := context.WithTimeout(t.Context(), conformanceTimeout)
	defer cancel()
	id := f.run(ctx, t)
	t.Run("names", func(t *testing.T) { f.names(t, id) })
	t.Run("list", func(t *testing.T) { f.list(ctx, t, false, "Running") })
	t.Run("attachments", func(t *testing.T) { f.attachments(ctx, t, 1) })
	t.Run("info", f.info)
	t.Run("generate", f.generate)
	t.Run("prune keeps what runs", f.pruneRunning)
	t.Run("exec", f.exec)
	t.Run("attach", f.attach)
	t.Run("logs", f.logs)
	t.Run("forward", f.forward)
	t.Run("usage", f.usage)
	t.Run("debug", f.debug)
	t.Run("running pods stay", func(t *testing.T) {
		_, err := f.Client.Remove(ctx, &huskv1.RemoveRequest{Name: f.Pod})
		wantCode(t, err, codes.FailedPrecondition)
	})
	t.Run("stop", func(t *testing.T) {
		for range 2 { // stopping a stopped pod succeeds
			r, err := f.Client.Stop(ctx, &huskv1.StopRequest{Name: f.Pod, GraceNs: int64(time.Second), HasGrace: true})
			if err != nil || r.Namespace != "default" || r.Name != f.Pod {
				t.Fatalf("%v, %v", r, err)
			}
		}
		f.list(ctx, t, true, "Stopped")
		f.attachments(ctx, t, 0)
		if p := f.pod(ctx, t, false); p != nil {
			t.Errorf("a stopped pod is listed as running: %v", p)
		}
	})
	t.Run("remove", func(t *testing.T) {
		r, err := f.Client.Remove(ctx, &huskv1.RemoveRequest{Name: f.Pod})
		if err != nil || r.Namespace != "default" || r.Name != f.Pod {
			t.Fatalf("%v, %v", r, err)
		}
		if p := f.pod(ctx, t, true); p != nil {
			t.Errorf("a removed pod is listed: %v", p)
		}
		_, err = f.Client.Remove(ctx, &huskv1.RemoveRequest{Name: f.Pod})
		wantCode(t, err, codes.NotFound)
	})
	t.Run("prune", func(t *testing.T) {
		f.events(ctx, t, true)
		if _, err := f.Client.Stop(ctx, &huskv1.StopRequest{Name: f.Pod, HasGrace: true}); err != nil {
			t.Fatal(err)
		}
		f.pruneStopped(t)
	})
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() != want || s.Message() == "" {
		t.Errorf("got %v, want %s and a message", err, want)
	}
}

// events runs the manifest and returns the events.
func (f Fixture) events(ctx context.Context, t *testing.T, wait bool) []*huskv1.RunEvent {
	t.Helper()
	stream, err := f.Client.Run(ctx, &huskv1.RunRequest{File: "pod.yaml", Manifest: f.Manifest, Wait: wait})
	var all []*huskv1.RunEvent
	for err == nil {
		var ev *huskv1.RunEvent
		if ev, err = stream.Recv(); err == nil {
			all = append(all, ev)
		}
	}
	if !errors.Is(err, io.EOF) || len(all) == 0 {
		t.Fatalf("run sent %d events, then %v", len(all), err)
	}
	return all
}

// run starts the pod and returns its ID.
func (f Fixture) run(ctx context.Context, t *testing.T) string {
	t.Helper()
	var last int64
	all := f.events(ctx, t, true)
	for _, ev := range all {
		if ev.Namespace != "default" || ev.Name != f.Pod || ev.ElapsedNs < last || ev.Unchanged {
			t.Errorf("event %v", ev)
		}
		last = ev.ElapsedNs
	}
	end := all[len(all)-1]
	if !end.Ready || !end.Settled || end.Phase != "Running" || len(end.Ips) == 0 || end.Id == "" {
		t.Fatalf("last event: %v", end)
	}
	for _, wait := range []bool{false, true} {
		again := f.events(ctx, t, wait)
		if ev := again[len(again)-1]; !ev.Unchanged || !ev.Ready || ev.Id != end.Id {
			t.Errorf("run again: %v", ev)
		}
	}
	stream, err := f.Client.Run(ctx, &huskv1.RunRequest{File: "bad.yaml", Manifest: []byte("kind: [")})
	if err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, err, codes.InvalidArgument)
	if !strings.Contains(status.Convert(err).Message(), "bad.yaml") {
		t.Errorf("the error doesn't name the file: %v", err)
	}
	return end.Id
}

func (f Fixture) pod(ctx context.Context, t *testing.T, all bool) *huskv1.Pod {
	t.Helper()
	r, err := f.Client.ListPods(ctx, &huskv1.ListPodsRequest{All: all})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Pods {
		if p.Namespace == "default" && p.Name == f.Pod {
			return p
		}
	}
	return nil
}

func (f Fixture) list(ctx context.Context, t *testing.T, all bool, phase string) {
	t.Helper()
	p := f.pod(ctx, t, all)
	if p == nil {
		t.Fatal("the pod isn't listed")
	}
	if p.Phase != phase || p.Uid == "" || p.CreatedNs == 0 || p.Source != "run" || len(p.Containers) != 1 {
		t.Errorf("listed as %v", p)
	}
	c := p.Containers[0]
	running := phase == "Running"
	if (c.State == "Running") != running || c.Ready != running || (c.Pid != 0) != running || c.Id == "" || c.StartedNs == 0 {
		t.Errorf("its container is %v", c)
	}
}

// attachments tests that the pod has that many attachments, and that no DEL is owed.
func (f Fixture) attachments(ctx context.Context, t *testing.T, want int) {
	t.Helper()
	if _, err := f.Client.RetryDebts(ctx, &huskv1.RetryDebtsRequest{}); err != nil {
		t.Error(err)
	}
	r, err := f.Client.ListAttachments(ctx, &huskv1.ListAttachmentsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, a := range r.Attachments {
		if a.Namespace != "default" || a.Name != f.Pod {
			continue
		}
		found++
		if a.Network == "" || a.Interface != "eth0" || a.Sandbox == "" || a.Netns == "" || len(a.Addresses) == 0 || a.Owed {
			t.Errorf("attached as %v", a)
		}
	}
	if found != want {
		t.Errorf("%d attachments, want %d: %v", found, want, r.Attachments)
	}
}

func (f Fixture) names(t *testing.T, id string) {
	p := f.pod(t.Context(), t, true)
	for _, name := range []string{f.Pod, "default/" + f.Pod, id, id[:12], p.Uid, p.Containers[0].Id} {
		r, err := f.Client.Inspect(t.Context(), &huskv1.InspectRequest{Name: name})
		if err != nil || !json.Valid(r.GetJson()) {
			t.Errorf("inspect %s: %s, %v", name, r.GetJson(), err)
		}
	}
	_, err := f.Client.Inspect(t.Context(), &huskv1.InspectRequest{Name: "no-such-pod"})
	wantCode(t, err, codes.NotFound)
	_, err = f.Client.Inspect(t.Context(), &huskv1.InspectRequest{Name: "other/" + f.Pod})
	wantCode(t, err, codes.NotFound)
}

// end is the result of a session.
type end struct {
	started        *huskv1.SessionStarted
	stdout, stderr bytes.Buffer
	code           int32
	err            error
}

// converse runs a session with all of the input.
func converse(stream huskv1.Husk_ExecClient, err error, start *huskv1.SessionStart, input []byte) *end {
	e := &end{code: -1, err: err}
	if err != nil {
		return e
	}
	send := func(m *huskv1.SessionInput) { _ = stream.Send(m) } // Recv returns the error
	send(&huskv1.SessionInput{Of: &huskv1.SessionInput_Start{Start: start}})
	go func() {
		for len(input) > 0 {
			n := min(len(input), 32<<10)
			send(&huskv1.SessionInput{Of: &huskv1.SessionInput_Stdin{Stdin: input[:n]}})
			input = input[n:]
		}
		send(&huskv1.SessionInput{Of: &huskv1.SessionInput_CloseStdin{CloseStdin: true}})
	}()
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) && e.code >= 0 {
			return e
		}
		if err != nil {
			e.err = err
			return e
		}
		switch of := m.Of.(type) {
		case *huskv1.SessionOutput_Started:
			e.started = of.Started
		case *huskv1.SessionOutput_Stdout:
			e.stdout.Write(of.Stdout)
		case *huskv1.SessionOutput_Stderr:
			e.stderr.Write(of.Stderr)
		case *huskv1.SessionOutput_ExitCode:
			e.code = of.ExitCode
		}
		if e.started == nil || e.code >= 0 && m.GetOf() != nil && !isExit(m) {
			e.err = errors.New("the first message is not the start, or the last is not the exit code")
			return e
		}
	}
}

func isExit(m *huskv1.SessionOutput) bool {
	_, ok := m.Of.(*huskv1.SessionOutput_ExitCode)
	return ok
}

func (f Fixture) exec(t *testing.T) {
	do := func(start *huskv1.SessionStart, input []byte) *end {
		ctx, cancel := context.WithTimeout(t.Context(), conformanceTimeout)
		defer cancel()
		stream, err := f.Client.Exec(ctx)
		return converse(stream, err, start, input)
	}
	start := func(args []string) *huskv1.SessionStart { return &huskv1.SessionStart{Name: f.Pod, Args: args} }
	if e := do(start(f.Exit7), nil); e.err != nil || e.code != 7 || e.started.Name != f.Pod || e.started.Stdin || e.started.Tty {
		t.Errorf("exit code: %+v", e)
	}
	if e := do(start(f.Both), nil); e.err != nil || e.code != 0 || e.stdout.String() != "to stdout\n" || e.stderr.String() != "to stderr\n" {
		t.Errorf("both outputs: %+v", e)
	}
	input := make([]byte, 3<<20)
	for i := range input {
		input[i] = byte(i * i >> 8)
	}
	cat := start(f.Cat)
	cat.Stdin = true
	if e := do(cat, input); e.err != nil || e.code != 0 || !bytes.Equal(e.stdout.Bytes(), input) || e.stderr.Len() > 0 || !e.started.Stdin {
		t.Errorf("standard input: %d bytes came back, code %d, %v", e.stdout.Len(), e.code, e.err)
	}
	if e := do(start(f.Cat), nil); e.err != nil || e.code != 0 || e.stdout.Len() > 0 {
		t.Errorf("no standard input: %+v", e)
	}
	if e := do(start(f.Missing), nil); e.err != nil || e.code != 127 || e.stderr.Len() == 0 {
		t.Errorf("missing program: %+v", e)
	}
	wantCode(t, do(&huskv1.SessionStart{Name: "no-such-pod", Args: f.Cat}, nil).err, codes.NotFound)
	wantCode(t, do(&huskv1.SessionStart{Name: f.Pod, Container: "no-such", Args: f.Cat}, nil).err, codes.NotFound)
	wantCode(t, do(&huskv1.SessionStart{Name: f.Pod}, nil).err, codes.InvalidArgument)
}

// attach detaches from the program, which keeps running.
func (f Fixture) attach(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), conformanceTimeout)
	defer cancel()
	stream, err := f.Client.Attach(ctx)
	if err != nil {
		t.Fatal(err)
	}
	start := &huskv1.SessionStart{Name: f.Pod, Stdin: true, Tty: true}
	_ = stream.Send(&huskv1.SessionInput{Of: &huskv1.SessionInput_Start{Start: start}})
	m, err := stream.Recv()
	if err != nil || m.GetStarted() == nil {
		t.Fatalf("the session began with %v, %v", m, err)
	}
	if s := m.GetStarted(); s.Tty || !s.Stdin || s.Namespace != "default" || s.Name != f.Pod || s.Container == "" {
		t.Errorf("the session has %v, which differs from the container", s)
	}
	cancel()
	f.list(t.Context(), t, false, "Running")
}

func (f Fixture) logs(t *testing.T) {
	ask := func(req *huskv1.LogsRequest) error {
		stream, err := f.Client.Logs(t.Context(), req)
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := ask(&huskv1.LogsRequest{Name: f.Pod, Tail: -1}); !errors.Is(err, io.EOF) {
		t.Errorf("logs end with %v", err)
	}
	wantCode(t, ask(&huskv1.LogsRequest{Name: f.Pod, Previous: true, Tail: -1}), codes.NotFound)
	wantCode(t, ask(&huskv1.LogsRequest{Name: f.Pod, Container: "no-such", Tail: -1}), codes.NotFound)
	wantCode(t, ask(&huskv1.LogsRequest{Name: "no-such-pod", Tail: -1}), codes.NotFound)
}
