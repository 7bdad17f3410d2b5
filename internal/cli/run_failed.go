package cli

import (
	"context"
	"fmt"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
)

const (
	// lastLinesMax is how many lines of a failed container's log are shown.
	lastLinesMax = 10
	// lastLinesTimeout bounds the time to get them.
	lastLinesTimeout = 5 * time.Second
)

// lastLines passes the end of the logs of the containers of a pod that failed to show, line by
// line. A failure to get them is silent, since the pod's own failure matters more.
func lastLines(c *client.Client, name string, show func(line string)) {
	ctx, cancel := context.WithTimeout(context.Background(), lastLinesTimeout)
	defer cancel()
	for _, p := range listPods(ctx, c) {
		if p.Namespace+"/"+p.Name != name {
			continue
		}
		for _, one := range p.Containers {
			if one.ExitCode == 0 || one.State == "Running" {
				continue
			}
			stream, err := c.Logs(ctx, &huskv1.LogsRequest{Name: name, Container: one.Name, Tail: lastLinesMax})
			if err != nil {
				return
			}
			for first := true; ; first = false {
				line, err := stream.Recv()
				if err != nil {
					break
				}
				if first {
					show(fmt.Sprintf("the last lines of container %s of pod %s:", render.Clean(one.Name), render.Clean(name)))
				}
				show("  " + render.Clean(string(line.Line)))
			}
		}
	}
}
