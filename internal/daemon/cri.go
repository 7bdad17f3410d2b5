package daemon

import (
	"google.golang.org/grpc"

	"github.com/huskd/husk/internal/cri"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/stream"
)

// serveCRI adds CRI's services to the server, and makes the one of interactive
// sessions.
func (d *daemon) serveCRI(server *grpc.Server) (err error) {
	d.streams, err = stream.New(stream.Config{
		Containers: d.containers,
		Netns: func(sandbox string) (string, error) {
			st, err := d.sandboxes.Get(sandbox)
			return st.Attachment.Netns, err
		},
		Log: d.log,
	})
	if err != nil {
		return err
	}
	cri.Register(server, cri.Config{
		Sandboxes: d.sandboxes, Containers: d.containers, Images: d.images, Events: &d.events,
		Meter: stats.New(d.facts.Cgroup), Streams: d.streams,
		NetworkReady:  d.cni.Status,
		SetRanges:     d.cni.SetRanges,
		ImagesChanged: func() { d.agent.ImagesChanged() },
		Host:          d.facts,
		Handlers:      d.handlers.List(),
		Root:          d.cfg.Root, State: d.cfg.State, Subnets: d.cfg.Subnets,
	})
	return nil
}
