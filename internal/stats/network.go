package stats

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"github.com/huskd/husk/internal/netns"
)

// Interface is the traffic of a network interface.
type Interface struct {
	Name           string
	Received, Sent Traffic
}

// Traffic is the traffic in one direction.
type Traffic struct{ Bytes, Packets, Errors, Dropped uint64 }

// Network returns the interfaces in the network namespace at path, except loopback. If
// path is empty, that is the namespace of the calling process.
func Network(path string) (list []Interface, err error) {
	read := func() error {
		content, err := os.ReadFile("/proc/thread-self/net/dev")
		list = parseDev(content)
		return err
	}
	if path == "" {
		return list, read()
	}
	return list, netns.Do(path, read)
}

// parseDev parses /proc/net/dev: two heading lines, then a line per interface with its
// name, eight counters for receiving and eight for sending.
func parseDev(content []byte) []Interface {
	var list []Interface
	for line := range bytes.Lines(content) {
		name, rest, ok := strings.Cut(string(line), ":")
		fields := strings.Fields(rest)
		if name = strings.TrimSpace(name); !ok || len(fields) < 12 || name == "lo" {
			continue
		}
		n := make([]uint64, len(fields))
		for i, f := range fields {
			n[i], _ = strconv.ParseUint(f, 10, 64)
		}
		list = append(list, Interface{
			Name:     name,
			Received: Traffic{Bytes: n[0], Packets: n[1], Errors: n[2], Dropped: n[3]},
			Sent:     Traffic{Bytes: n[8], Packets: n[9], Errors: n[10], Dropped: n[11]},
		})
	}
	return list
}
