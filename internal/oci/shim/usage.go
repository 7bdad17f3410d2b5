package shim

import (
	"context"
	"fmt"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/huskd/husk/internal/oci"
)

// Usage asks the shim what a running container uses. If the container's processes are the host's,
// its cgroup has more detail.
func (d *Driver) Usage(ctx context.Context, id string) (oci.Usage, error) {
	c, w, err := d.watched(id)
	if err != nil {
		return oci.Usage{}, err
	}
	t, ok := w.task()
	if !ok {
		return oci.Usage{}, c.wrap("measure", errEnded)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	metrics, err := t.stats(ctx, id)
	if err != nil {
		return oci.Usage{}, c.wrap("measure", err)
	}
	u, err := usageOf(metrics)
	return u, c.wrap("measure", err)
}

// usageOf decodes cgroup metrics, which all shims return, even those that don't measure by cgroups.
func usageOf(metrics *anypb.Any) (oci.Usage, error) {
	// Shims leave out the prefix of the type URL.
	switch metrics.GetTypeUrl() {
	case string((&v1.Metrics{}).ProtoReflect().Descriptor().FullName()):
		var m v1.Metrics
		err := proto.Unmarshal(metrics.GetValue(), &m)
		return oci.Usage{CPU: m.GetCPU().GetUsage().GetTotal(), Memory: m.GetMemory().GetUsage().GetUsage(), Processes: m.GetPids().GetCurrent()}, err
	case string((&v2.Metrics{}).ProtoReflect().Descriptor().FullName()):
		var m v2.Metrics
		err := proto.Unmarshal(metrics.GetValue(), &m)
		return oci.Usage{CPU: m.GetCPU().GetUsageUsec() * 1000, Memory: m.GetMemory().GetUsage(), Processes: m.GetPids().GetCurrent()}, err
	}
	return oci.Usage{}, fmt.Errorf("its shim returns metrics of the unknown type %.80q", metrics.GetTypeUrl())
}
