// Package cri serves CRI v1 to kubelet and crictl. It holds no state. The owners use CRI's messages
// themselves, so what is left is to resolve IDs, to filter lists and to build responses.
//
// Lists and events leave out the sandboxes of huskd's own agent, unless a filter names them: see
// docs/decisions/0016.
package cri

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/stream"
)

// Config holds what the services need.
type Config struct {
	Sandboxes  *sandbox.Service
	Containers *container.Service
	Images     *image.Store
	Events     *Events
	Meter      *stats.Meter
	Streams    *stream.Server
	// NetworkReady returns why no pod can be attached now, or nil.
	NetworkReady func(context.Context) error
	// Networks returns the networks that pods are attached to.
	Networks func() Networks
	// SetRanges sets the addresses that the cluster assigns to the node's pods.
	SetRanges func([]netip.Prefix) error
	// Pinned reports whether garbage collection must keep an image.
	Pinned func(image.Image) bool
	// ImagesChanged is called after a pull.
	ImagesChanged func()
	Host          host.Facts
	// Handlers are the runtime handlers, the default one first.
	Handlers    []oci.Handler
	Root, State string
	// Systemd says that the cgroup driver is systemd.
	Systemd bool
	// Subnets are the subnets of pods.
	Subnets []string
}

// Register adds both services to a gRPC server. The server's interceptors must translate the kinds
// of errors into gRPC's codes.
func Register(to grpc.ServiceRegistrar, cfg Config) {
	v := &view{Config: cfg}
	runtimeapi.RegisterRuntimeServiceServer(to, &runtimeService{
		node: node{v}, pods: pods{v}, containers: containers{v}, sessions: sessions{v}, usage: usage{v},
	})
	runtimeapi.RegisterImageServiceServer(to, &imageService{view: v})
}

// runtimeService combines the parts of CRI's long interface. Because it embeds the unsafe server,
// the compiler reports each method that is missing.
type runtimeService struct {
	runtimeapi.UnsafeRuntimeServiceServer
	node
	pods
	containers
	sessions
	usage
}

// view resolves IDs and builds the messages that several services share.
type view struct {
	Config
	podList       encodedList[podKey]
	containerList encodedList[containerKey]
}

// sandbox returns a sandbox by its ID or an unambiguous prefix.
func (v *view) sandbox(id string) (sandbox.Status, error) {
	if st, err := v.Sandboxes.Get(id); err == nil {
		return st, nil
	}
	full, err := expand("sandbox", id, func(yield func(string) bool) {
		for st := range v.Sandboxes.Views() {
			if !yield(st.ID) {
				return
			}
		}
	})
	if err != nil {
		return sandbox.Status{}, err
	}
	return v.Sandboxes.Get(full)
}

// container returns a container by its ID or an unambiguous prefix.
func (v *view) container(id string) (container.Status, error) {
	if st, err := v.Containers.Get(id); err == nil {
		return st, nil
	}
	full, err := expand("container", id, func(yield func(string) bool) {
		for st := range v.Containers.Views() {
			if !yield(st.ID) {
				return
			}
		}
	})
	if err != nil {
		return container.Status{}, err
	}
	return v.Containers.Get(full)
}

// expand returns the one of ids that begins with prefix.
func expand(kind, prefix string, ids iter.Seq[string]) (string, error) {
	if prefix == "" {
		return "", errdefs.ErrInvalidArgument.WithMessage(kind + " ID is empty: name one")
	}
	found := ""
	for id := range ids {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		if found != "" {
			return "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s ID %q is ambiguous: use more of it", kind, prefix))
		}
		found = id
	}
	if found == "" {
		return "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s %s not found", kind, printable(prefix)))
	}
	return found, nil
}

// printable returns an ID from a request, which may be any text, for a message.
func printable(id string) string {
	if pod.ValidID(id) {
		return pod.Short(id)
	}
	return fmt.Sprintf("%.*q", maxQuoted, id)
}

// ignoreNotFound turns a not-found error into success.
func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// precondition gives the kind failed precondition to the error of a program that can't be started.
func precondition(err error) error {
	if refusal := (*oci.StartError)(nil); errors.As(err, &refusal) {
		return errdefs.ErrFailedPrecondition.WithMessage(err.Error())
	}
	return err
}

// ofAgent reports whether labels are those of an object of the agent.
func ofAgent(labels map[string]string) bool { return labels[agent.Label] != "" }

// selected reports whether labels match selector. Labels of the agent's objects match only if the
// request names the object, or the selector the agent.
func selected(labels, selector map[string]string, named bool) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return named || selector[agent.Label] != "" || !ofAgent(labels)
}

// nanoseconds returns a time in CRI's format; 0 for the zero time.
func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// invalid returns an error of the kind invalid argument.
func invalid(format string, args ...any) error {
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(format, args...))
}

// chunkSize is how many elements of a streamed list go into one message.
const chunkSize = 500

// inChunks sends a list in messages of at most chunkSize elements.
func inChunks[T any](list []T, send func([]T) error) error {
	for len(list) > 0 {
		n := min(chunkSize, len(list))
		if err := send(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// withContextErr wraps ctx's error if the caller's cancellation or deadline has caused err.
func withContextErr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w (%v)", ctx.Err(), err)
	}
	return err
}
