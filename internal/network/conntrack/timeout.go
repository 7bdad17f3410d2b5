package conntrack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Sysctl is a change of a sysctl. Name is its path below /proc/sys.
type Sysctl struct{ Name, Former, Value string }

// timeouts are how long, in seconds, the table remembers idle TCP connections by the kernel's
// defaults, and on nodes with kube-proxy. The kernel's 5 days fill the table with connections whose
// ends are long gone, and its minute is too short for programs that close one direction and go on.
var timeouts = []Sysctl{
	{"net/netfilter/nf_conntrack_tcp_timeout_established", "432000", "86400"},
	{"net/netfilter/nf_conntrack_tcp_timeout_close_wait", "60", "3600"},
}

// Timeouts returns the changes after which the calling thread's namespace has the timeouts of a
// node with kube-proxy. A value that isn't the kernel's default is an administrator's, and stays.
// The kernel has these sysctls once something needs connection tracking.
func Timeouts() (changes []Sysctl, _ error) {
	for _, t := range timeouts {
		data, err := os.ReadFile(filepath.Join("/proc/sys", t.Name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("sysctl %s: %w", t.Name, err)
		}
		if strings.TrimSpace(string(data)) == t.Former {
			changes = append(changes, t)
		}
	}
	return changes, nil
}
