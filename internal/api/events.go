package api

import (
	"slices"
	"strings"

	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/workload"
	"github.com/huskd/husk/internal/workload/controller"
)

// Events streams the events of all pods or of one, which may be gone.
func (s *Server) Events(req *huskv1.EventsRequest, stream grpc.ServerStreamingServer[huskv1.Event]) error {
	events, mark, newer := s.Agent.Events.After(0)
	name, err := s.podOfEvents(req.Name, events)
	if err != nil {
		return err
	}
	for {
		for _, e := range events {
			if name != "" && e.Pod != name {
				continue
			}
			if err := stream.Send(eventMessage(e)); err != nil {
				return err
			}
		}
		if !req.Follow {
			return nil
		}
		select {
		case <-newer:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		events, mark, newer = s.Agent.Events.After(mark)
	}
}

// podOfEvents returns the full name of a pod that exists or has events, or of a workload that has.
func (s *Server) podOfEvents(name string, events []event.Event) (string, error) {
	if name == "" {
		return "", nil
	}
	if ref, ok := workload.ParseRef(name, manifest.DefaultNamespace); ok {
		of := controller.EventName(ref)
		if slices.ContainsFunc(events, func(e event.Event) bool { return e.Pod == of }) {
			return of, nil
		}
	}
	p, err := podref.Pod(s.Agent, name)
	if err == nil {
		return p.Name(), nil
	}
	full := name
	if !strings.Contains(name, "/") {
		full = manifest.DefaultNamespace + "/" + name
	}
	for _, e := range events {
		if e.Pod == full {
			return full, nil
		}
	}
	return "", err
}

func eventMessage(e event.Event) *huskv1.Event {
	namespace, name, _ := strings.Cut(e.Pod, "/")
	return &huskv1.Event{
		Namespace: namespace, Name: name, Container: e.Container, Warning: e.Warning, Reason: e.Reason, Message: e.Message,
		FirstNs: nanoseconds(e.First), LastNs: nanoseconds(e.Last), Count: int32(e.Count),
	}
}
