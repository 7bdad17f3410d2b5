// Package api serves huskd's own API, which the husk command line uses. It translates requests and
// keeps no state.
package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/api/serviceapi"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/explain"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/version"
	"github.com/huskd/husk/internal/workload/controller"
)

// Config holds what the API translates to.
type Config struct {
	Agent      *agent.Agent
	Workloads  *controller.Controller
	Objects    *objects.Store
	Containers *container.Service
	Sandboxes  *sandbox.Service
	Images     *image.Store
	Meter      *stats.Meter
	Network    *network.Network
	Nodes      *nodes.Controller  // nil on a node by itself
	Firewall   *firewall.Firewall // nil if network policy is off
	Services   *serviceapi.Server
	Explainer  explain.Explainer
	// Debts returns the attachments of removed pods whose DEL has not succeeded yet.
	Debts func() []pod.Debt
	// RetryDebts retries those DELs now and returns what failed.
	RetryDebts func(context.Context) error
	Doctor     func(context.Context) []*huskv1.Check
	// Dial connects a client to a port on the loopback of a sandbox, until either side closes.
	Dial func(ctx context.Context, sandbox string, port int32, client io.ReadWriteCloser) error
	// Runtime is the OCI runtime in use, for example "runc 1.1.5".
	Runtime     string
	Root, State string
	// Node is the name of this node.
	Node string
	// Leave gives this node's blocks of pod addresses back and removes its record from the store of
	// nodes. It fails if a pod has an address. It is nil if the node has nothing in a store.
	Leave func(context.Context) error
	// End ends huskd once the calls in flight have been answered.
	End func()
}

// Server implements the API.
type Server struct {
	huskv1.UnimplementedHuskServer
	Config
}

// Register registers the API with a gRPC server.
func Register(to grpc.ServiceRegistrar, cfg Config) {
	s, volumes := &Server{Config: cfg}, volume.Volumes{Root: cfg.Root, State: cfg.State}
	huskv1.RegisterHuskServer(to, s)
	huskv1.RegisterLifecycleServer(to, lifecycleServer{Config: cfg})
	huskv1.RegisterServicesServer(to, cfg.Services)
	huskv1.RegisterVolumesServer(to, volumeServer{volumes: volumes, objects: cfg.Objects})
	huskv1.RegisterObjectsServer(to, objectServer{server: s, volumes: volumes})
}

// Unary converts the errors of all services on the socket to gRPC statuses.
func Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	answer, err := next(ctx, req)
	return answer, toStatus(err)
}

// Stream does the same for streams.
func Stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return toStatus(next(srv, stream))
}

// toStatus maps the kind of an error to gRPC's code. It adds no details: the message says
// everything that a person needs.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	}
	return status.Error(status.Code(errgrpc.ToGRPC(err)), err.Error())
}

// Version returns the version of huskd and what it runs with.
func (s *Server) Version(context.Context, *huskv1.VersionRequest) (*huskv1.VersionResponse, error) {
	return &huskv1.VersionResponse{
		Version:   version.Version,
		Commit:    version.Commit(),
		GoVersion: version.Go(),
		Runtime:   s.Runtime,
		Root:      s.Root,
		State:     s.State,
		Pid:       int32(os.Getpid()),
	}, nil
}

// Doctor checks the host.
func (s *Server) Doctor(ctx context.Context, _ *huskv1.DoctorRequest) (*huskv1.DoctorResponse, error) {
	return &huskv1.DoctorResponse{Checks: s.Config.Doctor(ctx)}, nil
}

// killTimeout is how long killing the remaining containers may take, beyond the budget.
const killTimeout = time.Minute

// criticalShare is the part of the budget that is kept for critical pods: 1/criticalShare.
const criticalShare = 3

// leaveTimeout is how long giving back the node's blocks may take.
const leaveTimeout = 20 * time.Second

// Shutdown stops all pods and ends huskd, even if the client goes away. If the node shall leave and
// can't, huskd goes on without pods, so that it can be asked again.
func (s *Server) Shutdown(req *huskv1.ShutdownRequest, stream grpc.ServerStreamingServer[huskv1.ShutdownEvent]) error {
	if req.Leave && s.Leave == nil {
		return errdefs.ErrFailedPrecondition.WithMessage("this node has nothing to give back: its blocks of pod addresses are those that its configuration or nodes-file says")
	}
	budget := max(time.Duration(req.BudgetNs), 0)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stream.Context()), budget+killTimeout+leaveTimeout)
	defer cancel()
	err := drain(ctx, s.Agent, budget, stream)
	if req.Leave {
		if err != nil {
			return fmt.Errorf("this node hasn't left, as pods are still running: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		if err := s.Leave(ctx); err != nil {
			return err
		}
		_ = stream.Send(&huskv1.ShutdownEvent{Message: "node " + s.Node + " has left the other nodes' network, and its blocks are free"})
	}
	s.End()
	return err
}

// drain stops all pods. There are none to stop where huskd is only the network of another runtime.
func drain(ctx context.Context, pods *agent.Agent, budget time.Duration, stream grpc.ServerStreamingServer[huskv1.ShutdownEvent]) error {
	if pods == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, budget+killTimeout)
	defer cancel()
	return pods.Drain(ctx, agent.Budget{Total: budget, Critical: budget / criticalShare}, func(p agent.Pod, err error) {
		ev := &huskv1.ShutdownEvent{Namespace: p.Manifest.Namespace, Name: p.Manifest.Name, Message: "stopped"}
		if err != nil {
			ev.Message = err.Error()
		}
		_ = stream.Send(ev) // the client may be gone
	})
}
