package doctor

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/config"
)

// TestExposures: what a flag lets others do is said, and a configuration that lets them do nothing
// is not.
func TestExposures(t *testing.T) {
	t.Parallel()
	const (
		mesh    = "warn BGP: the sessions have no password: a host on the same link can pose as one of their ends, and redirect the packets of pods -> set bgp-password-file, with the same password on all nodes and routers"
		etcd    = " is reached without TLS: whoever is on the way can take this node's credentials and the blocks of all nodes, and with them the packets of pods -> use https in etcd-endpoints, and remove etcd-insecure"
		metrics = ", which need no login -> if pods may not see each other's names and usage: set metrics-listen to an address of loopback, such as 127.0.0.1:9477, or drop what pods send to this port"
		replace = "; then replace what is in it"
	)
	files := map[string]unix.Stat_t{
		"/root":   {Mode: unix.S_IFREG | 0o600},
		"/wheel":  {Mode: unix.S_IFREG | 0o640},
		"/group":  {Mode: unix.S_IFREG | 0o640, Gid: 7},
		"/all":    {Mode: unix.S_IFREG | 0o644},
		"/write":  {Mode: unix.S_IFREG | 0o622},
		"/theirs": {Mode: unix.S_IFREG | 0o600, Uid: 1000, Gid: 1000},
	}
	stat := func(path string, st *unix.Stat_t) (err error) {
		found, ok := files[path]
		if *st = found; !ok {
			err = unix.ENOENT
		}
		return err
	}
	for flags, want := range map[string][]string{
		"":                                       nil,
		"--network-store=file --nodes-file=/all": nil, // for all to read
		"--network-backend=bgp":                  nil, // without other nodes
		"--network-store=file --nodes-file=/root --network-backend=bgp":                              {mesh},
		"--network-store=file --nodes-file=/root --network-backend=bgp --bgp-password-file=/root":    nil,
		"--network-store=file --nodes-file=/root --network-backend=bgp --bgp-peers=192.0.2.1=1/gtsm": {mesh},
		"--network-store=file --nodes-file=/root --network-backend=bgp --bgp-peers=192.0.2.1=1/gtsm,192.0.2.2=1/bfd,2001:db8::3=1": {mesh,
			"warn BGP: the sessions with 192.0.2.2, 2001:db8::3 take packets from beyond the link, too, where hosts and pods may pose as these routers -> add /gtsm to these bgp-peers, and enable it on the routers"},
		"--network-store=file --nodes-file=/write": {"warn files: nodes-file /write can be written by others than root: its owner is 0:0 and its mode 0622 -> chown root: /write; chmod go-w /write"},
		"--network-store=file --nodes-file=/gone":  {"warn files: nodes-file: stat /gone: no such file or directory"},
		"--network-store=file --nodes-file=/root --network-backend=bgp --bgp-password-file=/all": {
			"warn files: bgp-password-file /all can be read or written by others than root: its owner is 0:0 and its mode 0644 -> chown root: /all; chmod go-rw /all" + replace},
		"--network-store=etcd --etcd-endpoints=https://192.0.2.1:2379 --etcd-cert-file=/all --etcd-key-file=/wheel": nil,
		"--network-store=etcd --etcd-endpoints=http://127.0.0.1:2379,http://[::1]:2379,http://localhost:2379":       nil,
		"--network-store=etcd --etcd-endpoints=http://192.0.2.1:2379,http://127.0.0.1:2379,http://[2001:db8::1]:2379,http://etcd:2379 --etcd-insecure": {
			"warn etcd: http://192.0.2.1:2379" + etcd, "warn etcd: http://[2001:db8::1]:2379" + etcd, "warn etcd: http://etcd:2379" + etcd},
		"--network-store=etcd --etcd-endpoints=https://192.0.2.1:2379 --etcd-cert-file=/all --etcd-key-file=/group --etcd-user=u --etcd-password-file=/theirs": {
			"warn files: etcd-password-file /theirs can be read or written by others than root: its owner is 1000:1000 and its mode 0600 -> chown root: /theirs; chmod go-rw /theirs" + replace,
			"warn files: etcd-key-file /group can be read or written by others than root: its owner is 0:7 and its mode 0640 -> chown root: /group; chmod go-rw /group" + replace},
		"--metrics-listen=127.0.0.1:9477":        nil,
		"--metrics-listen=[::1]:9477":            nil,
		"--metrics-listen=:9477":                 {"note metrics: pods reach the metrics at :9477" + metrics},
		"--metrics-listen=[2001:db8::1]:9477":    {"note metrics: pods reach the metrics at [2001:db8::1]:9477" + metrics},
		"--metrics-listen=node.example.com:9477": {"note metrics: pods reach the metrics at node.example.com:9477" + metrics},
	} {
		var d diagnosis
		d.exposures(parse(t, flags), stat)
		if diff := cmp.Diff(want, texts(d)); diff != "" {
			t.Errorf("%s: %s", flags, diff)
		}
	}
}

// TestExposuresAreLogged: huskd says at its start what would hurt, of files as they are.
func TestExposuresAreLogged(t *testing.T) {
	t.Parallel()
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(password, 0o644); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	var log strings.Builder
	LogExposures(parse(t, "--metrics-listen=:9477 --network-store=etcd --etcd-endpoints=http://192.0.2.1:2379 --etcd-insecure --etcd-user=u --etcd-password-file="+password), slog.New(slog.NewTextHandler(&log, nil)))
	if got := log.String(); strings.Count(got, "level=WARN") != 2 || !strings.Contains(got, "etcd: http://192.0.2.1:2379") || !strings.Contains(got, "etcd-password-file "+password+" can be read") || !strings.Contains(got, "mode 0644") {
		t.Errorf("the log is %s", got)
	}
}

func parse(t *testing.T, flags string) config.Config {
	t.Helper()
	c, err := config.Parse(append([]string{"--config", "/dev/null"}, strings.Fields(flags)...), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
