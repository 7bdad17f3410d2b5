package daemon

import (
	"context"
	"io"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/stats"
)

// meter is what the API sees of what is used.
type meter struct{ *stats.Meter }

func (m meter) Used(cgroup string) *huskv1.Used {
	u, err := m.Cgroup(cgroup)
	if err != nil {
		return nil // nothing has run in it yet, or it is gone
	}
	return &huskv1.Used{
		AtNs: u.At.UnixNano(), CpuNs: u.CPU.Used,
		MemoryBytes: u.Memory.WorkingSet, MemoryLimitBytes: u.Memory.Limit, Processes: u.Processes,
	}
}

func (meter) Traffic(netns string) (received, sent uint64) {
	interfaces, err := stats.Network(netns)
	if err != nil {
		return 0, 0 // it is gone
	}
	for _, i := range interfaces {
		received += i.Received.Bytes
		sent += i.Sent.Bytes
	}
	return received, sent
}

// dial connects a client of the API to a port of a sandbox.
func (d *daemon) dial(ctx context.Context, sandbox string, port int32, client io.ReadWriteCloser) error {
	return d.streams.Dial(ctx, sandbox, port, client)
}
