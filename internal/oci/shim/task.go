package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/huskd/husk/internal/oci"
)

// namespace is what containerd keeps containers of different clients apart by.
// Some shims have it in the names of their directories.
const namespace = "husk"

const (
	// dialLimit bounds connecting to a shim, which a local one does at once.
	dialLimit = 5 * time.Second
	// callLimit bounds a call that makes nothing new and waits for nobody.
	callLimit = 10 * time.Second
)

// task is a connection to the task service of a shim. Version 3 of the service
// has the messages of version 2 under another name, which TestVersions holds.
type task struct {
	client  *ttrpc.Client
	service string
}

// connect connects to a shim.
func connect(ctx context.Context, e endpoint) (*task, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", e.socket())
	if err != nil {
		return nil, fmt.Errorf("the shim doesn't answer: %w", err)
	}
	return &task{client: ttrpc.NewClient(conn), service: fmt.Sprintf("containerd.task.v%d.Task", e.Version)}, nil
}

func (t *task) close() { _ = t.client.Close() }

func (t *task) call(ctx context.Context, method string, req, resp proto.Message) error {
	ctx = ttrpc.WithMetadata(ctx, ttrpc.MD{"containerd-namespace-ttrpc": {namespace}})
	err := t.client.Call(ctx, t.service, method, req, resp)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ttrpc.ErrClosed):
		return errClosed
	}
	return errgrpc.ToNative(err)
}

// errClosed says that the shim has hung up.
var errClosed = errors.New("the shim has hung up")

// gone says whether an error of the shim means that the process has ended. They
// have different words and kinds for that.
func isGone(err error) bool {
	return errdefs.IsNotFound(err) || errors.Is(err, errClosed) ||
		strings.Contains(err.Error(), "process already finished") || strings.Contains(err.Error(), "no such process")
}

// refused makes a StartError of what a shim says, unless it said nothing.
func asStartError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errClosed) {
		return err
	}
	words := strings.TrimSuffix(err.Error(), ": unknown") // containerd's for an error without a kind
	return oci.NewStartError(words)
}

func (t *task) create(ctx context.Context, req *taskapi.CreateTaskRequest) (pid int, err error) {
	var resp taskapi.CreateTaskResponse
	err = t.call(ctx, "Create", req, &resp)
	return int(resp.GetPid()), asStartError(ctx, err)
}

// start starts the container's process, or an exec'd one.
func (t *task) start(ctx context.Context, id, exec string) error {
	return asStartError(ctx, t.call(ctx, "Start", &taskapi.StartRequest{ID: id, ExecID: exec}, &taskapi.StartResponse{}))
}

// wait waits for a process, and goes on doing so as long as the shim lives.
func (t *task) wait(ctx context.Context, id, exec string) (oci.Exit, error) {
	var resp taskapi.WaitResponse
	if err := t.call(ctx, "Wait", &taskapi.WaitRequest{ID: id, ExecID: exec}, &resp); err != nil {
		return oci.Exit{}, err
	}
	exit := oci.Exit{Code: int(resp.GetExitStatus()), At: resp.GetExitedAt().AsTime()}
	if !resp.GetExitedAt().IsValid() || exit.At.Unix() <= 0 {
		exit.At = time.Now()
	}
	return exit, nil
}

func (t *task) kill(ctx context.Context, id, exec string, sig syscall.Signal) error {
	req := &taskapi.KillRequest{ID: id, ExecID: exec, Signal: uint32(sig), All: exec == "" && sig == syscall.SIGKILL}
	return t.call(ctx, "Kill", req, &emptypb.Empty{})
}

// delete deletes an ended process, once its output was passed on.
func (t *task) delete(ctx context.Context, id, exec string) error {
	return t.call(ctx, "Delete", &taskapi.DeleteRequest{ID: id, ExecID: exec}, &taskapi.DeleteResponse{})
}

func (t *task) exec(ctx context.Context, req *taskapi.ExecProcessRequest) error {
	return asStartError(ctx, t.call(ctx, "Exec", req, &emptypb.Empty{}))
}

func (t *task) resize(ctx context.Context, id, exec string, size oci.Size) error {
	req := &taskapi.ResizePtyRequest{ID: id, ExecID: exec, Width: uint32(size.Width), Height: uint32(size.Height)}
	return t.call(ctx, "ResizePty", req, &emptypb.Empty{})
}

// closeInput says that nothing more is written to the standard input.
func (t *task) closeInput(ctx context.Context, id, exec string) error {
	return t.call(ctx, "CloseIO", &taskapi.CloseIORequest{ID: id, ExecID: exec, Stdin: true}, &emptypb.Empty{})
}

func (t *task) update(ctx context.Context, id string, resources *anypb.Any) error {
	return t.call(ctx, "Update", &taskapi.UpdateTaskRequest{ID: id, Resources: resources}, &emptypb.Empty{})
}

func (t *task) stats(ctx context.Context, id string) (*anypb.Any, error) {
	var resp taskapi.StatsResponse
	err := t.call(ctx, "Stats", &taskapi.StatsRequest{ID: id}, &resp)
	return resp.GetStats(), err
}

func (t *task) state(ctx context.Context, id string) (*taskapi.StateResponse, error) {
	var resp taskapi.StateResponse
	err := t.call(ctx, "State", &taskapi.StateRequest{ID: id}, &resp)
	return &resp, err
}

// shim returns the number of the shim's process.
func (t *task) shim(ctx context.Context, id string) (int, error) {
	var resp taskapi.ConnectResponse
	err := t.call(ctx, "Connect", &taskapi.ConnectRequest{ID: id}, &resp)
	return int(resp.GetShimPid()), err
}

// shutdown ends the shim if it has no container left.
func (t *task) shutdown(ctx context.Context, id string) error {
	return t.call(ctx, "Shutdown", &taskapi.ShutdownRequest{ID: id}, &emptypb.Empty{})
}
