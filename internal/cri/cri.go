// Package cri serves CRI v1, the door through which kubelet and crictl come. It
// translates and holds no state: the messages of CRI are the owners' own words,
// so what is left is to find what an ID means, to filter and to show.
//
// Sandboxes of huskd's own agent are not in lists and events unless a filter
// names them, see docs/decisions/0016.
package cri

import (
	"context"
	"errors"
	"fmt"
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
)

// Streams serve interactive sessions elsewhere; each call returns a URL that
// can be used once.
type Streams interface {
	Exec(*runtimeapi.ExecRequest) (url string, err error)
	Attach(*runtimeapi.AttachRequest) (url string, err error)
	PortForward(*runtimeapi.PortForwardRequest) (url string, err error)
}

// Config is what the services translate for.
type Config struct {
	Sandboxes  *sandbox.Service
	Containers *container.Service
	Images     *image.Store
	Events     *Events
	Meter      *stats.Meter
	Streams    Streams
	// NetworkReady says why a pod could not be attached now; nil if it could.
	NetworkReady func(context.Context) error
	// Networks are those that pods are attached to.
	Networks func() Networks
	// SetRanges says which addresses the cluster has for the node's pods.
	SetRanges func([]netip.Prefix) error
	// Pinned says whether an image must not be removed for want of room.
	Pinned func(image.Image) bool
	// ImagesChanged is told when an image came.
	ImagesChanged func()
	Host          host.Facts
	// Handlers are the runtime handlers, the default one first.
	Handlers    []oci.Handler
	Root, State string
	// Systemd says that systemd makes the cgroups of pods that are slices.
	Systemd bool
	// Subnets are the addresses of pods.
	Subnets []string
}

// Register adds both services to a gRPC server, whose interceptors make the
// kinds of errors gRPC's codes.
func Register(to grpc.ServiceRegistrar, cfg Config) {
	v := &view{cfg}
	runtimeapi.RegisterRuntimeServiceServer(to, &runtimeService{
		node: node{v}, pods: pods{v}, containers: containers{v}, sessions: sessions{v}, metering: metering{v},
	})
	runtimeapi.RegisterImageServiceServer(to, &imageService{view: v})
}

// runtimeService is made of the parts of a long interface. That it embeds the
// unsafe server makes the compiler ask for every call that there is.
type runtimeService struct {
	runtimeapi.UnsafeRuntimeServiceServer
	node
	pods
	containers
	sessions
	metering
}

// view finds and shows.
type view struct{ Config }

// sandbox finds a sandbox by its ID or an unambiguous beginning of it.
func (v *view) sandbox(id string) (sandbox.Status, error) {
	if st, err := v.Sandboxes.Get(id); err == nil {
		return st, nil
	}
	var ids []string
	for _, st := range v.Sandboxes.List() {
		ids = append(ids, st.ID)
	}
	full, err := whole("sandbox", id, ids)
	if err != nil {
		return sandbox.Status{}, err
	}
	return v.Sandboxes.Get(full)
}

// container finds a container by its ID or an unambiguous beginning of it.
func (v *view) container(id string) (container.Status, error) {
	if st, err := v.Containers.Get(id); err == nil {
		return st, nil
	}
	var ids []string
	for _, st := range v.Containers.List("") {
		ids = append(ids, st.ID)
	}
	full, err := whole("container", id, ids)
	if err != nil {
		return container.Status{}, err
	}
	return v.Containers.Get(full)
}

// whole returns the one of ids that begins with prefix.
func whole(kind, prefix string, ids []string) (string, error) {
	if prefix == "" {
		return "", errdefs.ErrInvalidArgument.WithMessage(kind + " ID is empty: name one")
	}
	found := ""
	for _, id := range ids {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		if found != "" {
			return "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s ID %q is the beginning of several: write more of it", kind, prefix))
		}
		found = id
	}
	if found == "" {
		return "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s %s not found", kind, shown(prefix)))
	}
	return found, nil
}

// shown is an ID that may be anything, in a message.
func shown(id string) string {
	if pod.ValidID(id) {
		return pod.Short(id)
	}
	const enough = 80
	return fmt.Sprintf("%.*q", enough, id)
}

// gone turns the error of what isn't there into success, for calls that want
// just that.
func gone(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// refused gives the error of a program that the runtime can't start its kind.
func refused(err error) error {
	if refusal := (*oci.StartError)(nil); errors.As(err, &refusal) {
		return errdefs.ErrFailedPrecondition.WithMessage(err.Error())
	}
	return err
}

// agents says whether labels are those of the agent's own.
func agents(labels map[string]string) bool { return labels[agent.Label] != "" }

// selected says whether labels have all of selector, and whether they are to be
// seen: the agent's are for those who name the pod or the agent.
func selected(labels, selector map[string]string, named bool) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return named || selector[agent.Label] != "" || !agents(labels)
}

// nanoseconds is a time as CRI has it; 0 for none.
func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// invalid is the error of a request that can't be meant.
func invalid(format string, args ...any) error {
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(format, args...))
}

// chunk is how many elements of a streamed list go into one message.
const chunk = 500

// inChunks sends a list in parts that each fit into a message.
func inChunks[T any](list []T, send func([]T) error) error {
	for len(list) > 0 {
		n := min(chunk, len(list))
		if err := send(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// deadlineOf explains an error by the caller's own deadline, if that was it.
func deadlineOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w (%v)", ctx.Err(), err)
	}
	return err
}
