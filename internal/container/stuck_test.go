package container

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// stuck is a runtime whose container can't be killed, like a process in uninterruptible sleep.
type stuck struct{ deleting chan struct{} }

func (stuck) Create(context.Context, oci.Create) (oci.Process, error) { panic("unexpected call") }
func (stuck) Start(context.Context, string) error                     { panic("unexpected call") }
func (stuck) Signal(context.Context, string, syscall.Signal) error    { return nil }

func (stuck) KillAll(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stuck) Wait(ctx context.Context, _ string) (oci.Exit, error) {
	<-ctx.Done()
	return oci.Exit{}, ctx.Err()
}

func (s stuck) Delete(ctx context.Context, _ string) error {
	close(s.deleting)
	<-ctx.Done()
	return ctx.Err()
}

// nowhere implements Sandboxes without any.
type nowhere struct{}

func (nowhere) Sandbox(string) (Sandbox, error) { return Sandbox{}, errdefs.ErrNotFound }
func (nowhere) Pod(string) pod.Ref              { return pod.Ref{} }

const stuckID = "5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c"

// resumeStuck returns the owner of a container that is recorded in the given state and boot and
// whose runtime is stuck. This boot is "this".
func resumeStuck(t *testing.T, state containerstate.State, boot string) (*Service, stuck) {
	t.Helper()
	j, _, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := stuck{make(chan struct{})}
	s := New(Config{Root: t.TempDir(), State: t.TempDir(), Journal: j, Runtime: r, Sandboxes: nowhere{}, Host: host.Facts{BootID: "this"}, Log: slog.New(slog.DiscardHandler)})
	config := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}}
	rec := &record{Sandbox: "sandbox", Started: time.Now()}
	rec.State, rec.Boot, rec.Created = state, boot, time.Now()
	if err := journal.NewConfigTable[*record, *runtimeapi.ContainerConfig](j, "container").Create(stuckID, config, rec); err != nil {
		t.Fatal(err)
	}
	if bad := s.Load(); len(bad) > 0 {
		t.Fatal(bad)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		_ = j.Close()
	})
	return s, r
}

// TestNotFinishedBeforeKilled: a container must not be shown as finished while a process may be
// left, as it would be started again.
func TestNotFinishedBeforeKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := resumeStuck(t, containerstate.Starting, "this")
		<-r.deleting
		if st, err := s.Get(stuckID); err != nil || st.Finished {
			t.Errorf("the container is %s and finished, but its process has not been killed (%v)", st.State, err)
		}
	})
}

// TestStopOfUnkillable: Stop must end with an error, so that it can be repeated.
func TestStopOfUnkillable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := resumeStuck(t, containerstate.Running, "this")
		err := s.Stop(t.Context(), stuckID, 0)
		if err == nil || !strings.Contains(err.Error(), "kill") {
			t.Errorf("Stop returned %v", err)
		}
	})
}

// TestLostWhenResumed: a container of an earlier boot must not be shown as running, nor a sandbox
// as ready, once Resume has returned. The agent would start containers in it.
func TestLostWhenResumed(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // what goes on in the background waits
	synctest.Test(t, func(t *testing.T) {
		s, _ := resumeStuck(t, containerstate.Running, "before")
		if st, err := s.Get(stuckID); err != nil || !st.State.Down() {
			t.Errorf("after a reboot the container is %s (%v)", st.State, err)
		}
	})
}
