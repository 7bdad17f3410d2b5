package cri

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// sessions implements the methods that run or connect to something in a container or sandbox.
type sessions struct{ *view }

// ExecSync runs a program in a container until it ends, and returns its output.
func (s sessions) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	switch {
	case len(req.GetCmd()) == 0:
		return nil, invalid("exec needs a command")
	case req.GetTimeout() < 0:
		return nil, invalid("exec timeout of %d s is negative", req.GetTimeout())
	}
	id, err := s.running(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	budget := &budget{left: maxOutput}
	out, errs := &capture{budget: budget}, &capture{budget: budget}
	code, err := s.Containers.Exec(ctx, oci.Exec{
		ID: id, Args: req.GetCmd(), Streams: oci.Streams{Stdout: out, Stderr: errs},
		Timeout: time.Duration(min(req.GetTimeout(), int64(maxGrace/time.Second))) * time.Second,
	})
	if err != nil {
		return nil, precondition(err)
	}
	return &runtimeapi.ExecSyncResponse{Stdout: out.bytes, Stderr: errs.bytes, ExitCode: int32(code)}, nil
}

// maxOutput bounds the output in ExecSync's response, which must fit into the 16 MiB of the
// kubelet's largest message.
const maxOutput = 16<<20 - 4<<10

// budget is a number of bytes that several streams share.
type budget struct {
	mu   sync.Mutex
	left int
}

func (b *budget) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, b.left)
	b.left -= n
	return n
}

// capture keeps what is written to it within a budget. It drops the rest without an error, so that
// the program isn't affected.
type capture struct {
	budget *budget
	bytes  []byte
}

func (c *capture) Write(p []byte) (int, error) {
	c.bytes = append(c.bytes, p[:c.budget.take(len(p))]...)
	return len(p), nil
}

// running returns the full ID of a running container.
func (s sessions) running(id string) (string, error) {
	st, err := s.container(id)
	if err != nil {
		return "", err
	}
	if st.State != containerstate.Running || st.Finished {
		return "", errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q (%s) is not running", st.Name(), pod.Short(st.ID)))
	}
	return st.ID, nil
}

// Exec returns the URL by which a client can run a program in a container.
func (s sessions) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if len(req.GetCmd()) == 0 {
		return nil, invalid("exec needs a command")
	}
	id, err := s.running(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	url, err := s.Streams.Exec(&runtimeapi.ExecRequest{
		ContainerId: id, Cmd: req.GetCmd(), Tty: req.GetTty(), Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
	})
	return &runtimeapi.ExecResponse{Url: url}, err
}

// Attach returns the URL by which a client can attach to a container's streams.
func (s sessions) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	id, err := s.running(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	url, err := s.Streams.Attach(&runtimeapi.AttachRequest{
		ContainerId: id, Tty: req.GetTty(), Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
	})
	return &runtimeapi.AttachResponse{Url: url}, err
}

// PortForward returns the URL by which a client can reach ports of a sandbox.
func (s sessions) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	st, err := s.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if st.State != sandboxstate.Ready {
		return nil, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("sandbox %s of pod %s is %s: nothing listens in it", pod.Short(st.ID), st.Ref(), st.State))
	}
	for _, port := range req.GetPort() {
		if port < 1 || port > 65535 {
			return nil, invalid("port %d is not within 1 to 65535", port)
		}
	}
	url, err := s.Streams.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: st.ID, Port: req.GetPort()})
	return &runtimeapi.PortForwardResponse{Url: url}, err
}
