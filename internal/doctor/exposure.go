package doctor

import (
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/network/backend"
)

// LogExposures logs what of the configuration lets others take part in what is the node's alone.
// huskd starts all the same: who else is on the link or the machine is for the administrator to
// know.
func LogExposures(c config.Config, log *slog.Logger) {
	var d diagnosis
	d.exposures(c, unix.Stat)
	for _, check := range d.checks {
		if check.Level == warn {
			log.Warn(check.Name+": "+check.Finding, "remedy", check.Remedy)
		}
	}
}

// exposures checks what of the configuration lets others take part in what is the node's alone.
func (d *diagnosis) exposures(c config.Config, stat func(path string, st *unix.Stat_t) error) {
	if c.Store != config.StoreNone && c.Backend == string(backend.OnlyBGP) && c.BGPPassword == "" {
		d.sessions(c.BGP)
	}
	for _, endpoint := range config.Unencrypted(c.EtcdEndpoints) {
		d.add("etcd", warn, endpoint+" is reached without TLS: whoever is on the way can take this node's credentials and the blocks of all nodes, and with them the packets of pods",
			"use https in etcd-endpoints, and remove etcd-insecure")
	}
	if host, _, err := net.SplitHostPort(c.Metrics); err == nil && !config.OnLoopback(host) {
		d.add("metrics", note, "pods reach the metrics at "+c.Metrics+", which need no login", "if pods may not see each other's names and usage: set metrics-listen to an address of loopback, such as 127.0.0.1:9477, or drop what pods send to this port")
	}
	for _, f := range []struct{ key, path string }{
		{"bgp-password-file", c.BGPPassword}, {"etcd-password-file", c.EtcdPassword}, {"etcd-key-file", c.EtcdKey}, {"node-tls-private-key-file", c.NodeTLSKey},
	} {
		d.file(f.key, f.path, 0o066, stat)
	}
	d.file("nodes-file", c.NodesFile, 0o022, stat)
}

// sessions checks sessions of BGP that have no password. GTSM keeps off who isn't on the link.
func (d *diagnosis) sessions(c config.BGP) {
	const name = "BGP"
	d.add(name, warn, "the sessions have no password: a host on the same link can pose as one of their ends, and redirect the packets of pods",
		"set bgp-password-file, with the same password on all nodes and routers")
	peers, _ := c.BGPPeers() // config.Parse has checked them
	var open []string
	for _, p := range peers {
		if !p.GTSM {
			open = append(open, p.Address.String())
		}
	}
	if len(open) > 0 {
		d.add(name, warn, "the sessions with "+strings.Join(open, ", ")+" take packets from beyond the link, too, where hosts and pods may pose as these routers",
			"add /gtsm to these bgp-peers, and enable it on the routers")
	}
}

// file checks that nobody but root has the permissions in mask on a file, if one is configured.
func (d *diagnosis) file(key, path string, mask uint32, stat func(path string, st *unix.Stat_t) error) {
	if path == "" {
		return
	}
	const name = "files"
	var st unix.Stat_t
	if err := stat(path, &st); err != nil {
		d.add(name, warn, fmt.Sprintf("%s: %v", key, &fs.PathError{Op: "stat", Path: path, Err: err}), "")
		return
	}
	granted := st.Mode & mask
	if st.Gid == 0 {
		granted &= 0o007
	}
	if granted == 0 && st.Uid == 0 {
		return
	}
	what, remedy := "written", fmt.Sprintf("chown root: %s; chmod go-w %s", path, path)
	if mask&0o044 != 0 {
		what, remedy = "read or written", fmt.Sprintf("chown root: %s; chmod go-rw %s; then replace what is in it", path, path)
	}
	d.add(name, warn, fmt.Sprintf("%s %s can be %s by others than root: its owner is %d:%d and its mode %04o", key, path, what, st.Uid, st.Gid, st.Mode&0o7777), remedy)
}
