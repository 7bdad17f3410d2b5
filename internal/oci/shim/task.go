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

// namespace is containerd's namespace for Husk's containers, by which it keeps clients apart. Some
// shims use it in the names of their directories.
const namespace = "husk"

const (
	// dialLimit bounds connecting to a shim's socket, which usually takes no time.
	dialLimit = 5 * time.Second
	// callLimit bounds calls that neither create nor wait for anything.
	callLimit = 10 * time.Second
)

// task is a connection to the task service of a shim. Version 3 of the service has the messages of
// version 2 under another name, which TestVersions checks.
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
		return nil, fmt.Errorf("the shim does not accept connections: %w", err)
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

// errClosed says that the shim has closed the connection.
var errClosed = errors.New("the shim has closed the connection")

// isGone reports whether a shim's error means that the process has exited. Shims report that with
// different kinds and texts.
func isGone(err error) bool {
	return errdefs.IsNotFound(err) || errors.Is(err, errClosed) ||
		strings.Contains(err.Error(), "process already finished") || strings.Contains(err.Error(), "no such process")
}

// asStartError turns an error that the shim returned into a StartError. Other errors stay as they
// are.
func asStartError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errClosed) {
		return err
	}
	return oci.NewStartError(strings.TrimSuffix(err.Error(), ": unknown")) // ttrpc's kind of most errors
}

func (t *task) create(ctx context.Context, req *taskapi.CreateTaskRequest) (pid int, err error) {
	var resp taskapi.CreateTaskResponse
	err = t.call(ctx, "Create", req, &resp)
	return int(resp.GetPid()), asStartError(ctx, err)
}

// start starts the container's init process, or an exec.
func (t *task) start(ctx context.Context, id, exec string) error {
	return asStartError(ctx, t.call(ctx, "Start", &taskapi.StartRequest{ID: id, ExecID: exec}, &taskapi.StartResponse{}))
}

// wait waits for the exit of a process.
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

// delete deletes an exited process, after the shim has copied its output.
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

// closeInput closes the shim's end of the stdin pipe.
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

// shim returns the PID of the shim.
func (t *task) shim(ctx context.Context, id string) (int, error) {
	var resp taskapi.ConnectResponse
	err := t.call(ctx, "Connect", &taskapi.ConnectRequest{ID: id}, &resp)
	return int(resp.GetShimPid()), err
}

// shutdown makes the shim exit if it has no container left.
func (t *task) shutdown(ctx context.Context, id string) error {
	return t.call(ctx, "Shutdown", &taskapi.ShutdownRequest{ID: id}, &emptypb.Empty{})
}
