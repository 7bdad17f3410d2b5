package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// containerCases are pods with one container, whose script prints what the container got. The whole
// output, without the last newline, must match want.
var containerCases = []struct {
	name      string
	pod       string // fields of the pod's spec, in a YAML flow mapping
	container string // fields of the container
	script    string
	want      string
}{
	{"memory", "", "resources: {limits: {memory: 64Mi}}",
		"cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max", "67108864"},
	{"cpu", "", "resources: {limits: {cpu: 500m}}",
		"cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us 2>/dev/null || tr ' ' '\\n' </sys/fs/cgroup/cpu.max", "50000\n100000"},
	{"cpu-request", "", "resources: {requests: {cpu: 250m}}",
		"cat /sys/fs/cgroup/cpu/cpu.shares 2>/dev/null || cat /sys/fs/cgroup/cpu.weight", "256|10"},
	{"processes", "", "tty: false", "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max", "333"},

	{"confined", "", "tty: false", "awk '/^(CapEff|CapBnd|NoNewPrivs|Seccomp):/ {print $1, $2}' /proc/self/status",
		"CapEff: 00000000800405fb\nCapBnd: 00000000800405fb\nNoNewPrivs: 0\nSeccomp: 2"},
	{"no-escalation", "", "securityContext: {allowPrivilegeEscalation: false}", "grep NoNewPrivs /proc/self/status", `NoNewPrivs:\s1`},
	{"unconfined", "securityContext: {seccompProfile: {type: Unconfined}}", "tty: false", "grep Seccomp: /proc/self/status", `Seccomp:\s0`},
	{"cap-add", "", "securityContext: {capabilities: {add: [NET_ADMIN]}}", "grep CapEff /proc/self/status", `CapEff:\s00000000800415fb`},
	{"cap-drop", "", "securityContext: {capabilities: {drop: [CHOWN, CAP_KILL]}}", "grep CapEff /proc/self/status", `CapEff:\s00000000800405da`},
	{"cap-only", "", "securityContext: {capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}}", "grep CapEff /proc/self/status", `CapEff:\s0000000000000400`},
	// Neither packets of a pod's own making nor device nodes, but ping, also for any user.
	{"no-raw", "", "tty: false", "arping -c1 -I lo 127.0.0.1 2>&1; traceroute -n -m1 -q1 127.0.0.1 2>&1; traceroute6 -n -m1 -q1 ::1 2>&1; mknod /tmp/x c 1 3 2>&1",
		"(.*(permitted|denied).*\n){3}.*permitted"},
	{"ping", usrVolume, usrMount, pings, pinged},
	{"ping-user", usrVolume, usrMount + ", securityContext: {runAsUser: 1000, runAsGroup: 2000000000, capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false}", pings, pinged},
	{"ping-sysctl", usrVolume + ", securityContext: {sysctls: [{name: net/ipv4/ping_group_range, value: '7 7'}]}", usrMount,
		"cat /proc/sys/net/ipv4/ping_group_range; " + pings, "7\t7"},
	{"raw", "", "securityContext: {capabilities: {add: [NET_RAW]}}", "traceroute -n -m1 -q1 127.0.0.1 2>&1 | grep -c ' 127.0.0.1 .* ms'; ping -c1 127.0.0.1 | grep -c ' 1 packets received'", "1\n1"},

	{"root", "", "tty: false", "id -u; id -g; pwd; echo $HOME", "0\n0\n/\n/root"},
	{"user", "", "securityContext: {runAsUser: 1000, runAsGroup: 50}, workingDir: /home/alice", "id -u; id -g; pwd; grep CapEff /proc/self/status",
		"1000\n50\n/home/alice\n" + `CapEff:\s0000000000000000`},
	{"user-number", "", "securityContext: {runAsUser: 4711}", "id -u; id -g; id -G", "4711\n0\n0"},
	{"groups", "securityContext: {runAsUser: 1000, supplementalGroups: [123, 456]}", "tty: false", "id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' '", "(0 50 123 456|50 123 456 1000) "},
	{"strict-groups", "securityContext: {runAsUser: 1000, supplementalGroups: [123], supplementalGroupsPolicy: Strict}", "tty: false", "id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' '", "(0|123 1000|0 123) ?.*"},
	{"image-user", "", "image: 'localhost/alice:1'", "id -u; id -g; id -G; pwd; echo $HOME $FLAVOUR", "1000\n1000\n1000 50\n/home/alice\n/home/alice sweet"},

	{"read-only", "volumes: [{name: v, emptyDir: {}}]", "securityContext: {readOnlyRootFilesystem: true}, volumeMounts: [{name: v, mountPath: /v}]",
		"touch /x 2>&1; touch /v/x /dev/shm/x && ls /v /dev/shm", "touch: /x: Read-only file system\n/dev/shm:\nx\n\n/v:\nx"},
	{"writable", "", "tty: false", "echo mine >/etc/group && cat /etc/group", "mine"},
	{"masked", "", "tty: false", "for f in kcore keys timer_list sched_debug; do test -e /proc/$f && wc -c </proc/$f; done | sort -u; (echo 1 >/proc/sys/kernel/panic) 2>&1; touch /proc/irq 2>&1; mkdir /sys/x 2>&1",
		"0\n.*/proc/sys/kernel/panic: Read-only file system\n.*/proc/irq: Read-only file system\n.*/sys/x.*: (Read-only file system|Operation not permitted)"},
	{"unmasked", "", "securityContext: {procMount: Unmasked}", "touch /proc/irq 2>&1 | grep -c Read-only", "0"},
	{"privileged", "", "securityContext: {privileged: true}", "grep Seccomp: /proc/self/status; test -w /proc/sys/kernel/panic && echo writable; mount -t tmpfs none /mnt 2>/dev/null || mkdir /mnt && mount -t tmpfs none /mnt && echo mounted; test -e /dev/kmsg && echo kmsg",
		`Seccomp:\s0` + "\nwritable\nmounted\nkmsg"},
	{"devices", "", "securityContext: {capabilities: {add: [MKNOD]}}", "ls /dev | tr '\\n' ' '; echo; ls /dev/shm /dev/mqueue; head -c3 /dev/zero | wc -c; (echo x >/dev/full) 2>&1; mknod /tmp/sda b 8 0 && cat /tmp/sda 2>&1",
		"(console )?(core )?fd full mqueue null ptmx pts random shm stderr stdin stdout termination-log tty urandom zero \n/dev/mqueue:\n\n/dev/shm:\n3\n.*No space left on device\n.*can't open '/tmp/sda': Operation not permitted"},
	// All that is in memory and writable is bounded.
	{"tmpfs", "", "tty: false", "awk '$3 == \"tmpfs\" {print $2}' /proc/self/mounts | sort -u | while read m; do test -d $m && dd if=/dev/zero of=$m/fill bs=1M count=100 2>/dev/null; " +
		"test -e $m/fill && stat -c '%n %s' $m/fill && rm $m/fill; done; mkdir /sys/fs/cgroup/x 2>&1; true",
		"/dev/fill 67108864\n/dev/shm/fill 671\\d+\nmkdir: .*: Read-only file system"},
	{"shm", "", "tty: false", "head -c 67108864 /dev/zero >/dev/shm/x && stat -c %s /dev/shm/x", "67108864"},
	{"terminal", "", "tty: true, stdin: true", "test -t 0 && test -t 1 && tty", "/dev/(console|pts/0)\r?"},
	{"no-terminal", "", "tty: false", "test -t 0 || test -t 1 || echo none; readlink /proc/self/fd/0", "none\n/dev/null"},

	{"in-memory", "volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]", "volumeMounts: [{name: v, mountPath: /v}]",
		"stat -f -c %T /v; head -c 2000000 /dev/zero 2>&1 >/v/x; wc -c </v/x; stat -c %a /v", "tmpfs\n.*error.*\n1048576\n1777"},
	{"host-path", "volumes: [{name: v, hostPath: {path: /etc/hostname, type: File}}, {name: d, hostPath: {path: /usr/share, type: Directory}}]",
		"volumeMounts: [{name: v, mountPath: /name, readOnly: true}, {name: d, mountPath: /d, readOnly: true}]", "test -s /name && echo there; (echo x >/name) 2>&1; touch /d/x 2>&1; ls -d /d/doc",
		"there\n.*Read-only file system\n.*Read-only file system\n/d/doc"},

	{"name", "hostname: called, hostAliases: [{ip: 192.0.2.7, hostnames: [one, two.example]}]", "tty: false",
		"hostname; cat /etc/hostname; grep -c called /etc/hosts; grep 192.0.2.7 /etc/hosts; grep localhost /etc/hosts | head -1; wget -q -O - http://one/ 2>&1 | grep -c resolve",
		"called\ncalled\n2\n192.0.2.7\tone\ttwo.example\n127.0.0.1\tlocalhost\n0"},
	{"override", "hostname: other, subdomain: sub, hostnameOverride: called.example", "tty: false", "hostname; cat /etc/hostname; grep -c 'called.example$' /etc/hosts", "called.example\ncalled.example\n2"},
	{"unmounted", "volumes: [{name: v, configMap: {name: none}}, {name: i, image: {reference: 'localhost/none:1'}}], securityContext: {seLinuxChangePolicy: Recursive, windowsOptions: {runAsUserName: x}}",
		"securityContext: {windowsOptions: {runAsUserName: x}}", "echo runs", "runs"},
	{"resolver", "dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.53, '2001:db8::53'], searches: [a.example, b.example], options: [{name: ndots, value: '3'}, {name: edns0}]}",
		"tty: false", "cat /etc/resolv.conf", "(search a.example b.example\nnameserver 192.0.2.53\nnameserver 2001:db8::53|nameserver 192.0.2.53\nnameserver 2001:db8::53\nsearch a.example b.example)\noptions ndots:3 edns0"},
	{"sysctl", "securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '99'}, {name: kernel.msgmax, value: '9999'}]}", "tty: false",
		"cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/msgmax", "99\n9999"},
	{"variables", "", `env: [{name: A, value: a}, {name: B, value: 'b$(A)$$(A)$(C)'}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}},
		{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}},
		{name: D, valueFrom: {resourceFieldRef: {resource: requests.ephemeral-storage, divisor: 1Mi}}}, {name: M, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}],
		resources: {limits: {memory: 32Mi, ephemeral-storage: 7Mi}}`, `echo "$A $B $POD $M $D$ACCOUNT $PATH"; ip -4 -o address show eth0 | grep -qF "$IP/" && echo same`,
		`a ba\$\(A\)\$\(C\) variables 32 7 /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin` + "\nsame"},
	{"expanded", "", "env: [{name: WORD, value: hello}], args: ['$(WORD) $$(WORD) $(NONE)']", `echo "$0"`, `hello \$\(WORD\) \$\(NONE\)`},

	{"in-order", "volumes: [{name: v, emptyDir: {}}], initContainers: [" + initContainer("one", "echo 1 >>/v/f; echo first >/dev/shm/f") + ", " +
		strings.Replace(initContainer("side", "echo s >>/v/f; sleep 1000"), "name: side", "restartPolicy: Always, name: side", 1) + ", " +
		initContainer("two", "until grep -q s /v/f; do sleep 0.1; done; echo 2 >>/v/f") + "]",
		"volumeMounts: [{name: v, mountPath: /v}]", "cat /v/f /dev/shm/f; hostname", "1\ns\n2\nfirst\nin-order"},

	{"env-file", "volumes: [{name: v}], initContainers: [" + initContainer("one", `printf "# made here\nB='b'\nA='one\ntwo' # end\n" >/v/env`) + "]",
		"env: [{name: FOUND, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: A}}}, {name: MISSING, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: C, optional: true}}}]",
		`echo "$FOUND${MISSING-none}"; ls -d /v 2>&1 | grep -c "No such"`, "one\ntwonone\n1"},

	{"own-namespaces", "", "tty: false", "ps -o pid,args | tail -n +2 | head -1 | grep -c sh; ls /sys/class/net | tr '\\n' ' '", "1\neth0 lo "},
	{"host-network", "hostNetwork: true", "tty: false", "hostname; ls -d /sys/class/net/up0 2>/dev/null || ip link show up0 | head -1", "node\n.*up0.*"},
	{"host-processes", "hostPID: true", "tty: false", "ps -o args | grep -q '[h]uskd --root' && echo seen", "seen"},
}

// pings prints what came back of one packet to each of the pod's own addresses and of its loopback.
// The program is the node's, started by its loader, so that its file capabilities don't count:
// upstream's busybox knows only raw sockets.
const (
	pings     = `for a in 127.0.0.1 ::1 $(ip -o address show eth0 scope global | awk '{print $4}' | cut -d / -f 1); do ` + iputils + ` -n -c1 -w10 $a 2>&1 | grep packets; done`
	iputils   = `$(ls -d /u/lib/*/ld-linux-*.so.* | head -1) --library-path $(ls -d /u/lib/*/libidn2.so.0 | xargs dirname) /u/bin/ping`
	pinged    = `(1 packets transmitted, 1 received, 0% packet loss, time \d+ms\n?){4}`
	usrVolume = "volumes: [{name: u, hostPath: {path: /usr}}]"
	usrMount  = "volumeMounts: [{name: u, mountPath: /u, readOnly: true}]"
)

func initContainer(name, script string) string {
	return fmt.Sprintf("{name: %s, image: 'localhost/web:1', command: %s, volumeMounts: [{name: v, mountPath: /v}]}", name, shell(script))
}

// shell returns a command that runs a script, as a YAML flow sequence.
func shell(script string) string {
	words, _ := json.Marshal([]string{"/bin/sh", "-c", script})
	return string(words)
}

// aliceArchive returns an archive of localhost/alice:1, whose config names the user alice.
func aliceArchive(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	image, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Users,
		Config: ocispec.ImageConfig{User: "alice", WorkingDir: "/home/alice", Env: []string{"FLAVOUR=sweet"}}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := testimage.WriteArchive(&out, testimage.Named{Image: image, Names: []string{"localhost/alice:1"}}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// checkContainerCases runs all the pods of containerCases at once.
func checkContainerCases(t *testing.T, n *node.Node) {
	t.Helper()
	n.MustHusk("image", "load", write(t, n, "alice.tar", aliceArchive(t)))
	var manifests, names []string
	for _, c := range containerCases {
		spec := c.container
		if !strings.Contains(spec, "image:") {
			spec += ", image: 'localhost/web:1'"
		}
		spec = fmt.Sprintf("restartPolicy: Never, containers: [{name: c, %s, command: %s}]", spec, shell(c.script+"\nexit 0"))
		if c.pod != "" {
			spec = c.pod + ", " + spec
		}
		manifests = append(manifests, podOf(c.name, spec))
		names = append(names, c.name)
	}
	n.MustHusk("run", "--wait", "--timeout", "1m", write(t, n, "inside.yaml", strings.Join(manifests, "---\n")))
	for _, c := range containerCases {
		logs := n.Husk("logs", c.name)
		got := strings.TrimSuffix(logs.Stdout, "\n")
		if logs.Stderr != "" || !regexp.MustCompile("^(?:"+c.want+")$").MatchString(got) {
			p := findPod(t, n, c.name)
			t.Errorf("%s: got\n%s\n%swant\n%s\n(%s %s %s)", c.name, got, logs.Stderr, c.want, p.Phase, p.Reason, p.Message)
		}
	}
	n.MustHusk(append([]string{"rm", "-f"}, names...)...)
}

// TestContainersRunc runs containerCases on a node on which runc is the only runtime.
func TestContainersRunc(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	hide(n, "/usr/bin/crun")
	testRuntime(t, n, "runc")
	show(n, "/usr/bin/crun")
	n.NothingLeft()
}

// TestContainersCrun runs containerCases on a node on which crun is the only runtime.
func TestContainersCrun(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	hide(n, "/usr/sbin/runc")
	// crun refuses the hybrid layout of cgroups.
	n.Run("umount", "/sys/fs/cgroup/unified")
	testRuntime(t, n, "crun")
	show(n, "/usr/sbin/runc")
	n.NothingLeft()
}

// testRuntime checks that huskd uses the named runtime, and runs containerCases.
func testRuntime(t *testing.T, n *node.Node, name string) {
	t.Helper()
	d := n.Huskd(node.Flags("--pids-limit", "333"))
	if out := n.MustHusk("version"); !strings.Contains(out, name+" ") {
		t.Fatalf("the runtime isn't %s:\n%s", name, out)
	}
	n.MustHusk("image", "load", write(t, n, "web.tar", string(webArchive(t))))
	checkContainerCases(t, n)
	d.Stop()
	d = n.Huskd(node.Flags("--default-capabilities", "chown,NET_RAW,CAP_MKNOD"))
	n.MustHusk("run", "--wait", write(t, n, "old.yaml", podOf("old", only("command: [sleep, '1000']"))))
	if got := strings.Fields(n.MustHusk("exec", "old", "--", "grep", "CapEff", "/proc/1/status")); len(got) != 2 || got[1] != "0000000008002001" {
		t.Errorf("with default-capabilities: %q", got)
	}
	n.MustHusk("rm", "-f", "old")
	d.Stop()
}
