package nri

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
)

// Plugins may request the eviction of containers, in a request or in an answer. The
// adaptation (v0.12.5) has the messages but doesn't pass them on, so interceptors read
// them.

// requests is a server interceptor that reads evictions from plugins' requests.
func (r *Relay) requests(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	return method(ctx, func(into any) error {
		err := unmarshal(into)
		if request, ok := into.(*api.UpdateContainersRequest); ok && err == nil {
			r.evict(request.GetEvict())
		}
		return err
	})
}

// answers is a client interceptor that reads evictions from plugins' answers.
func (r *Relay) answers(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, _ *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
	if err := call(ctx, request, response); err != nil {
		return err
	}
	var answer interface {
		proto.Message
		GetEvict() []*api.ContainerEviction
	}
	switch request.GetMethod() {
	case "CreateContainer":
		answer = &api.CreateContainerResponse{}
	case "UpdateContainer":
		answer = &api.UpdateContainerResponse{}
	default:
		return nil
	}
	if err := proto.Unmarshal(response.GetPayload(), answer); err == nil { // if not, the caller reports the error
		r.evict(answer.GetEvict())
	}
	return nil
}

// evict stops containers, each after its pending changes.
func (r *Relay) evict(evictions []*api.ContainerEviction) {
	for _, e := range evictions {
		id := e.GetContainerId()
		r.cfg.Log.Warn("NRI: a plugin evicts a container", "container", id, "reason", e.GetReason())
		r.changes.add(id, func() error {
			err := r.objects.containers.Stop(context.Background(), id, 0)
			r.logFailure("evict", id, err)
			return err
		})
	}
}
