package api

import (
	"time"

	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/logs"
)

// Logs streams the log of a container's run.
func (s *Server) Logs(req *huskv1.LogsRequest, stream grpc.ServerStreamingServer[huskv1.LogsResponse]) error {
	p, name, err := podref.Container(s.Agent, req.Name, req.Container)
	if err != nil {
		return err
	}
	run, err := podref.Run(p, name, req.Previous)
	if err != nil {
		return err
	}
	o := logs.Options{Tail: int(req.Tail), Follow: req.Follow}
	if req.SinceNs != 0 {
		o.Since = time.Unix(0, req.SinceNs)
	}
	if o.Ended, err = s.Containers.Ended(run.ID); err != nil {
		return err
	}
	return logs.Read(stream.Context(), run.Log, o, func(l logs.Line) error {
		return stream.Send(&huskv1.LogsResponse{Line: l.Text, Stderr: l.Stderr, TimeNs: l.Time.UnixNano(), Container: name})
	})
}
