package daemon

import (
	"fmt"

	"github.com/containernetworking/cni/libcni"
	"google.golang.org/grpc"

	"github.com/huskd/husk/internal/cni/conf"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/cri"
	"github.com/huskd/husk/internal/stream"
)

// newStreams returns the server of interactive sessions.
func (d *daemon) newStreams() (*stream.Server, error) {
	return stream.New(stream.Config{
		Containers: d.containers,
		Netns: func(sandbox string) (string, error) {
			st, err := d.sandboxes.Get(sandbox)
			return st.Attachment.Netns, err
		},
		Log: d.log,
	})
}

// registerCRI adds CRI's services to the server.
func (d *daemon) registerCRI(server *grpc.Server) {
	cri.Register(server, cri.Config{
		Sandboxes: d.sandboxes, Containers: d.containers, Images: d.images, Events: &d.events,
		Meter: d.meter, Streams: d.streams,
		NetworkReady:  d.cni.Status,
		Networks:      func() cri.Networks { return networksOf(d.cni.Networks(), d.cfg.Plugins) },
		SetRanges:     d.cni.SetRanges,
		Pinned:        d.disk().IsPinned,
		ImagesChanged: func() { d.agent.ImagesChanged() },
		Host:          d.facts,
		Handlers:      d.handlers.List(),
		Systemd:       d.cfg.Systemd(),
		Root:          d.cfg.Root, State: d.cfg.State, Subnets: d.cfg.Subnets,
	})
}

// networksOf returns the networks that pods are attached to: the built-in one if no other is
// configured.
func networksOf(found conf.State, cfg config.Plugins) cri.Networks {
	out := cri.Networks{Dirs: cfg.CNIBin, ConfDir: cfg.CNIConf, Max: cfg.CNIMax, Prefix: "eth", Fault: found.Stale}
	if found.Err != nil {
		out.Fault = found.Err.Error()
	}
	if len(found.Networks) == 0 && found.Err == nil {
		out.List = []cri.Attachable{cri.NewAttachable(&libcni.NetworkConfigList{Name: "husk"}, "eth0")}
	}
	for i, n := range found.Networks[:min(len(found.Networks), cfg.CNIMax)] {
		out.List = append(out.List, cri.NewAttachable(n.List, fmt.Sprintf("eth%d", i)))
	}
	return out
}
