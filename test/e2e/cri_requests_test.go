package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// rpc is a call of CRI.
type rpc struct {
	name     string // full name, with the service
	request  func() proto.Message
	response func() proto.Message
	streams  bool
}

// rpcs returns all calls except for those named in skip.
func rpcs(t *testing.T, skip ...string) (list []rpc) {
	t.Helper()
	made := func(d protoreflect.MessageDescriptor) func() proto.Message {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
		if err != nil {
			t.Fatal(err)
		}
		return func() proto.Message { return kind.New().Interface() }
	}
	services := (&runtimeapi.VersionRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range services.Len() {
	methods:
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			for _, name := range skip {
				if string(m.Name()) == name {
					continue methods
				}
			}
			list = append(list, rpc{
				fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Name()), made(m.Input()), made(m.Output()), m.IsStreamingServer(),
			})
		}
	}
	const least = 35
	if len(list) < least {
		t.Fatalf("CRI has only %d calls, want at least %d", len(list), least)
	}
	return list
}

// call makes a call and returns when it has finished, streams included.
func (c *criNode) call(ctx context.Context, r rpc, request proto.Message) error {
	if !r.streams {
		return c.conn.Invoke(ctx, r.name, request, r.response())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, r.name)
	if err != nil {
		return err
	}
	if err = errors.Join(stream.SendMsg(request), stream.CloseSend()); err != nil {
		return err
	}
	for err == nil {
		err = stream.RecvMsg(r.response())
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// fill sets the string, bool and message fields of m. Fields that name a sandbox or a container get
// the IDs of real ones, so that the call gets as far as the other fields.
func fill(m protoreflect.Message, ids map[string]string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
		case f.Kind() == protoreflect.StringKind && f.IsList():
			m.Mutable(f).List().Append(protoreflect.ValueOfString("x"))
		case f.Kind() == protoreflect.StringKind:
			value := "x"
			if id := ids[string(f.Name())]; id != "" {
				value = id
			}
			m.Set(f, protoreflect.ValueOfString(value))
		case f.Kind() == protoreflect.MessageKind && depth > 0 && f.IsList():
			element := m.Mutable(f).List().NewElement()
			fill(element.Message(), ids, depth-1)
			m.Mutable(f).List().Append(element)
		case f.Kind() == protoreflect.MessageKind && depth > 0:
			fill(m.Mutable(f).Message(), ids, depth-1)
		case f.Kind() == protoreflect.BoolKind && !f.IsList():
			m.Set(f, protoreflect.ValueOfBool(true))
		}
	}
}

// skipped are the calls that create, stop or remove objects, which other subtests cover, and last
// the one whose stream never ends.
var skipped = []string{
	"RunPodSandbox", "CreateContainer", "StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer", "GetContainerEvents",
}

// depth is how deep fill descends: to a resource within the resources of a config.
const depth = 3

// oddRequests puts odd texts into every string of every request.
func oddRequests(t *testing.T, c *criNode) {
	pod := c.pod()
	ids := map[string]string{"pod_sandbox_id": pod, "container_id": c.run(pod, forever)}
	for _, r := range rpcs(t, skipped...) {
		base := func() proto.Message {
			m := r.request()
			fill(m.ProtoReflect(), ids, depth)
			return m
		}
		c.tryOddTexts(base, func(m proto.Message) error {
			err := c.call(c.ctx, r, m)
			if status.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "checkpoint") {
				return nil // a runtime that can't checkpoint
			}
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			return nil
		})
	}
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
}

// anyCallTimeout checks that a client may time out in the middle of any call.
func anyCallTimeout(t *testing.T, c *criNode) {
	pod := c.pod()
	ids := map[string]string{"pod_sandbox_id": pod, "container_id": c.run(pod, forever)}
	for i := range 4 {
		for _, r := range rpcs(t, skipped[:len(skipped)-1]...) {
			request := r.request()
			fill(request.ProtoReflect(), ids, depth)
			ctx, cancel := context.WithTimeout(c.ctx, time.Duration(i)*2*time.Millisecond)
			_ = c.call(ctx, r, request)
			cancel()
		}
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Millisecond)
	defer cancel()
	_, _ = c.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: ids["container_id"], Cmd: []string{"sleep", "1000"}})
	_, _ = c.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: usersImage}})
	if got := c.sh(ids["container_id"], "echo well"); got != "well" {
		t.Errorf("exec in the container after the timeouts: %q, want well", got)
	}
	node.Eventually(t, 20*time.Second, func() string {
		if out := c.sh(ids["container_id"], "ps"); strings.Contains(out, "sleep 1000") {
			return "the exec of a client that has gone still runs:\n" + out
		}
		return ""
	})
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
}

// stalledReaders checks that clients that don't read their streams don't block others.
func stalledReaders(_ *testing.T, c *criNode) {
	ctx, leave := context.WithCancel(c.ctx)
	defer leave()
	for range 10 {
		for _, open := range []func() error{
			func() error { return ignore(c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})) },
			func() error { return ignore(c.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{})) },
			func() error { return ignore(c.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{})) },
			func() error {
				return ignore(c.StreamContainerStats(ctx, &runtimeapi.StreamContainerStatsRequest{}))
			},
		} {
			c.must(open())
		}
	}
	long := strings.Repeat("a", 64<<10) // more than a stream's flow-control window
	for range 5 {
		id := c.pod(func(p *runtimeapi.PodSandboxConfig) { p.Annotations = map[string]string{"long": long} })
		c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})))
	}
}
