package huskdtest

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
)

// debug adds containers with tools to the pod, which keeps running.
func (f Fixture) debug(t *testing.T) {
	ask := func(req *huskv1.DebugRequest) (last *huskv1.DebugEvent, err error) {
		stream, err := f.Debugging.Debug(t.Context(), req)
		for err == nil {
			var ev *huskv1.DebugEvent
			if ev, err = stream.Recv(); err == nil {
				last = ev
			}
		}
		return last, err
	}
	app := f.pod(t.Context(), t, true).Containers[0]
	ev, err := ask(&huskv1.DebugRequest{Name: f.Pod, Image: app.Image, Args: f.Exit7})
	if !errors.Is(err, io.EOF) || !ev.GetStarted() || ev.Namespace != "default" || ev.Name != f.Pod || ev.Container == "" || ev.Target != app.Name {
		t.Fatalf("the last event is %v, then %v", ev, err)
	}
	for deadline := time.Now().Add(conformanceTimeout); ; time.Sleep(10 * time.Millisecond) {
		list := f.pod(t.Context(), t, true).Ephemeral
		i := slices.IndexFunc(list, func(c *huskv1.Container) bool { return c.Name == ev.Container })
		if i >= 0 && list[i].State == "Terminated" && list[i].ExitCode == 7 && list[i].Id != "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s hasn't ended with 7: %v", ev.Container, list)
		}
	}
	f.list(t.Context(), t, false, "Running")
	for _, c := range []struct {
		req  *huskv1.DebugRequest
		code codes.Code
	}{
		{&huskv1.DebugRequest{Name: f.Pod, Args: f.Exit7}, codes.InvalidArgument},
		{&huskv1.DebugRequest{Name: f.Pod, Image: "localhost/no-such:1", Args: f.Exit7}, codes.FailedPrecondition},
		{&huskv1.DebugRequest{Name: f.Pod, Target: "no-such", Image: app.Image}, codes.NotFound},
		{&huskv1.DebugRequest{Name: "no-such-pod", Image: app.Image}, codes.NotFound},
	} {
		_, err := ask(c.req)
		wantCode(t, err, c.code)
	}
}
