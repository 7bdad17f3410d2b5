// Package portforward forwards ports of this machine to a pod, through huskd.
package portforward

import (
	"fmt"
	"strconv"
	"strings"
)

// Port is a pair of ports to forward.
type Port struct {
	// Local is the port on this machine; 0 for any free one.
	Local uint16
	// SameLocal makes Local the number that Remote resolves to.
	SameLocal bool
	// Remote is the pod's port: a number, or the name of a container's port.
	Remote string
}

// Parse parses REMOTE, LOCAL:REMOTE or :REMOTE.
func Parse(s string) (Port, error) {
	local, remote, two := strings.Cut(s, ":")
	if !two {
		local, remote = "", s
	}
	p := Port{Remote: remote, SameLocal: !two}
	if local != "" {
		n, err := strconv.ParseUint(local, 10, 16)
		if err != nil {
			return p, fmt.Errorf("%q: the local port must be a number from 0 to 65535, not %q", s, local)
		}
		p.Local = uint16(n)
	}
	n, err := strconv.ParseUint(remote, 10, 64)
	if remote == "" || strings.Contains(remote, ":") || err == nil && (n == 0 || n > 1<<16-1) {
		return p, fmt.Errorf("%q: the pod's port must be a number from 1 to 65535 or a port's name, not %q", s, remote)
	}
	return p, nil
}
