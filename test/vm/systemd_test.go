package vm

import (
	"bytes"
	"os"
	"path"
	"strings"
)

// systemdUnits are the Debian units in the machine: those of a host with a message bus and a
// journal.
var systemdUnits = []string{
	"sysinit.target", "basic.target", "multi-user.target", "local-fs.target", "local-fs-pre.target", "swap.target",
	"sockets.target", "timers.target", "paths.target", "slices.target", "network.target", "network-online.target",
	"shutdown.target", "umount.target", "final.target",
	"dbus.service", "dbus.socket", "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket",
}

// testsUnit runs init, and powers the machine off when it ends.
const testsUnit = `[Unit]
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate

[Service]
Type=oneshot
ExecStart=/init
`

// huskdConfig makes systemd the cgroup driver, with a handler for each runtime.
const huskdConfig = `cgroup-driver = "systemd"
[runtimes.runc]
path = "/usr/sbin/runc"
[runtimes.crun]
path = "/usr/bin/crun"
`

// addSystemd adds systemd to a root, with the unit of huskd and a unit for
// systemdPrograms.
func addSystemd(root *Initrd) error {
	const units, configured = "/lib/systemd/system/", "/etc/systemd/system/"
	programs := []string{"/lib/systemd/systemd", "/lib/systemd/systemd-journald", "/lib/systemd/systemd-cgroups-agent", "systemctl", "journalctl", "dbus-daemon"}
	const executor = "/lib/systemd/systemd-executor" // by which systemd starts units from version 255 on
	if _, err := os.Stat(executor); err == nil {
		programs = append(programs, executor)
	}
	for _, program := range programs {
		if err := root.Program(program); err != nil {
			return err
		}
	}
	files := map[string]string{configured + "huskd.service": "../../packaging/systemd/huskd.service"}
	for _, name := range []string{"system.conf", "system.d/org.freedesktop.systemd1.conf"} {
		files["/usr/share/dbus-1/"+name] = "/usr/share/dbus-1/" + name
	}
	for _, name := range systemdUnits {
		files[units+name] = units + name
		if strings.HasSuffix(name, ".socket") {
			root.Link(configured+"sockets.target.wants/"+name, units+name)
		}
	}
	root.Link(configured+"default.target", units+"multi-user.target")
	root.Link(configured+"multi-user.target.wants/tests.service", configured+"tests.service")
	for name, host := range files {
		body, err := os.ReadFile(host)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, "/huskd.service") { // its programs are where make install puts them
			body = bytes.ReplaceAll(body, []byte("=/usr/bin/"), []byte("=/usr/local/bin/"))
		}
		root.File(name, 0o644, body)
	}
	for name, body := range map[string]string{
		configured + "tests.service": testsUnit, "/etc/husk/huskd.toml": huskdConfig,
		"/etc/machine-id": "68757368757368757368757368757368\n", // without one systemd takes it for a first boot
		SystemdPrograms:   string(list(systemdPrograms)),
	} {
		root.File(name, 0o644, []byte(body))
	}
	for _, p := range systemdPrograms {
		root.Link(binary(p), binary(program{name: path.Base(p.pkg)}))
	}
	return nil
}
