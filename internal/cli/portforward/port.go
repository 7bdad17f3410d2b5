// Package portforward has ports of this machine lead to those of a pod, by way of
// huskd.
package portforward

import (
	"fmt"
	"strconv"
	"strings"
)

// Port is one that is to lead to a pod's.
type Port struct {
	// Local is on this machine; 0 is any that is free.
	Local uint16
	// SameLocal says that Local is to be the number that Remote turns out to be.
	SameLocal bool
	// Remote is the pod's: a number, or a name that one of its containers has
	// for it.
	Remote string
}

// Parse reads REMOTE, LOCAL:REMOTE or :REMOTE.
func Parse(s string) (Port, error) {
	local, remote, two := strings.Cut(s, ":")
	if !two {
		local, remote = "", s
	}
	p := Port{Remote: remote, SameLocal: !two}
	if local != "" {
		n, err := strconv.ParseUint(local, 10, 16)
		if err != nil {
			return p, fmt.Errorf("%q: the port of this machine is a number from 0 to 65535, not %q", s, local)
		}
		p.Local = uint16(n)
	}
	n, err := strconv.ParseUint(remote, 10, 64)
	if remote == "" || strings.Contains(remote, ":") || err == nil && (n == 0 || n > 1<<16-1) {
		return p, fmt.Errorf("%q: the pod's port is a number from 1 to 65535 or the name of one, not %q", s, remote)
	}
	return p, nil
}
