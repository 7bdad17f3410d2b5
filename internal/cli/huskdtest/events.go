package huskdtest

import (
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
)

// AddEvent adds an event of a pod.
func (h *Huskd) AddEvent(e *huskv1.Event) { h.change(func() { h.events = append(h.events, e) }) }

// Events streams the events.
func (h *Huskd) Events(req *huskv1.EventsRequest, stream grpc.ServerStreamingServer[huskv1.Event]) error {
	namespace, name := "", ""
	if req.Name != "" {
		h.mu.Lock()
		p, _, err := h.find(req.Name)
		h.mu.Unlock()
		if err != nil {
			return err
		}
		namespace, name = p.Namespace, p.Name
	}
	sent := 0
	for {
		var events []*huskv1.Event
		err := h.until(stream.Context(), func() bool {
			events = h.events[sent:]
			return len(events) > 0 || !req.Follow
		})
		if err != nil {
			return err
		}
		sent += len(events)
		for _, e := range events {
			if name != "" && (e.Name != name || e.Namespace != namespace) {
				continue
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		if !req.Follow {
			return nil
		}
	}
}
