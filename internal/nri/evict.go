package nri

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
)

// Plugins may ask that containers be stopped, with a request of their own or in
// an answer. The adaptation (v0.12.5) has the words and passes none of them on, so
// they are read from what goes by.

// requests reads evictions from what plugins ask for.
func (r *Relay) requests(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	return method(ctx, func(into any) error {
		err := unmarshal(into)
		if asked, ok := into.(*api.UpdateContainersRequest); ok && err == nil {
			r.evict(asked.GetEvict())
		}
		return err
	})
}

// answers reads evictions from what plugins answer.
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
	if err := proto.Unmarshal(response.GetPayload(), answer); err == nil { // if not, who asked will say so
		r.evict(answer.GetEvict())
	}
	return nil
}

// evict stops containers, each with the changes of it that were asked for before.
func (r *Relay) evict(asked []*api.ContainerEviction) {
	for _, e := range asked {
		id := e.GetContainerId()
		r.cfg.Log.Warn("NRI: a plugin evicts a container", "container", id, "reason", e.GetReason())
		r.changes.add(id, func() error {
			err := r.containers.Stop(context.Background(), id, 0)
			r.after("evict", id, err)
			return err
		})
	}
}
