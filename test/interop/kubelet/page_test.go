package kubelet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/page"
)

// systemctl starts and stops the programs of units, as systemd does by the ExecStart of their
// files.
const systemctl = `#!/bin/sh
verb= unit=
for arg; do case $arg in -*) ;; *) if [ "$verb" ]; then unit=$arg; else verb=$arg; fi ;; esac; done
main=/run/$unit.main
case $verb in
enable | start)
	exec_start=$(sed -n 's|^ExecStart=/usr/bin/||p' /etc/systemd/system/$unit.service 2>/dev/null)
	setsid ${exec_start:-$unit} >>$LOGS/$unit.log 2>&1 </dev/null &
	echo $! >$main
	[ $unit != huskd ] || for i in $(seq 600); do husk version >/dev/null 2>&1 && break; sleep 0.1; done
	;;
stop)
	kill $(cat $main)
	while kill -0 $(cat $main) 2>/dev/null; do sleep 0.1; done
	;;
esac
`

// adapted is what the kubelet needs because the node consists of namespaces.
const adapted = `
cgroupRoot: %s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
enforceNodeAllocatable: [pods]
syncFrequency: 5s
`

// TestKubeletPage runs the commands of docs/kubelet.md with a kubelet that has no API server.
func TestKubeletPage(t *testing.T) {
	p := page.Read(t, "../../../docs/kubelet.md")
	m := newMachine(t)
	m.huskd.Stop()
	bin := filepath.Join(m.Dir, "bin")
	for name, script := range map[string]string{
		"systemctl": systemctl,
		"huskd":     "#!/bin/sh\nexec " + m.Binary("huskd") + " --root " + m.Root + " --cni-conf-dir= \"$@\"\n",
		"husk":      "#!/bin/sh\nexec " + m.Binary("husk") + " \"$@\"\n",
		"kubelet":   "#!/bin/sh\nexec " + m.program("kubelet") + " --hostname-override=node --node-ip=" + node.Address4 + " \"$@\"\n",
		"crictl":    "#!/bin/sh\nexec " + m.program("crictl") + " \"$@\"\n",
	} {
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The page's paths are the real ones.
	upper, work := m.Dir+"/upper", m.Dir+"/work"
	m.Must("mkdir", "-p", upper, work, m.Dir+"/kubelet", "/var/lib/kubelet")
	m.Must("mount", "-t", "overlay", "-o", "lowerdir=/etc,upperdir="+upper+",workdir="+work, "overlay", "/etc")
	m.Must("mount", "--bind", m.Dir+"/kubelet", "/var/lib/kubelet")
	for _, cgroup := range m.cgroupDirs() {
		if err := os.MkdirAll(cgroup, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"huskd", "kubelet"} {
				log, _ := os.ReadFile(filepath.Join(m.Dir, name+".log"))
				t.Logf("log of %s:\n%s", name, log)
			}
		}
	})
	run := func(command string) string {
		t.Helper()
		began := time.Now()
		r := m.Run("env", "PATH="+bin+":/usr/sbin:/usr/bin:/sbin:/bin", "LOGS="+m.Dir, "sh", "-ec", "{ "+command+"\n} >$LOGS/out 2>&1")
		out, _ := os.ReadFile(filepath.Join(m.Dir, "out")) // a file, because daemons keep it open
		if r.Code != 0 {
			t.Fatalf("%s: exit code %d\n%s%s", command, r.Code, out, r.Stderr)
		}
		t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), command)
		return string(out)
	}
	follow := func(heading string) (printed []string) {
		t.Helper()
		s := p.Section(heading)
		for _, f := range s.Files {
			if f.Path == "/etc/kubernetes/kubelet.yaml" {
				f.Content += fmt.Sprintf(adapted, m.cgroup) + roomy + "\n"
			}
			m.Must("sh", "-c", `mkdir -p "$(dirname "$0")" && printf %s "$1" >"$0"`, f.Path, f.Content)
		}
		for _, c := range s.Commands {
			printed = append(printed, run(c))
		}
		return printed
	}

	if err := os.Chmod(m.Dir, 0o711); err != nil { // a user namespace's root comes through
		t.Fatal(err)
	}
	follow("huskd")
	follow("The kubelet")
	node.Eventually(t, time.Minute, func() string {
		answer, err := m.get("https://127.0.0.1:10250/healthz")
		if answer != "ok" {
			return fmt.Sprintf("kubelet: %q %v", answer, err)
		}
		return ""
	})
	printed := follow("crictl")
	var info struct {
		Status struct {
			Conditions []struct {
				Type   string
				Status bool
			}
		}
		RuntimeHandlers []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(printed[0][:strings.LastIndex(printed[0], "}")+1]), &info); err != nil {
		t.Fatalf("crictl info: %v\n%s", err, printed[0])
	}
	if h := fmt.Sprint(info.RuntimeHandlers); !strings.Contains(h, "sandboxed") {
		t.Errorf("crictl info lists the handlers %s", h)
	}
	for _, c := range info.Status.Conditions {
		if !c.Status {
			t.Errorf("%s is false", c.Type)
		}
	}
	var settings struct {
		KubeletConfig struct {
			CgroupDriver, ImageServiceEndpoint, ShutdownGracePeriod string
		}
	}
	text, err := m.request(http.MethodGet, "https://127.0.0.1:10250/configz")
	if err == nil {
		err = json.Unmarshal([]byte(text), &settings)
	}
	if c := settings.KubeletConfig; err != nil || c.CgroupDriver != "cgroupfs" || c.ShutdownGracePeriod != "30s" {
		t.Errorf("the kubelet's configuration: %+v, %v", c, err)
	}

	follow("A pod")
	var pod *corev1.Pod
	node.Eventually(t, 2*time.Minute, func() string {
		if pod = m.pod("web-node"); pod == nil || !ready(pod) {
			return "the pod is " + describe(pod)
		}
		return ""
	})
	for _, c := range p.Section("A pod").Commands {
		for _, line := range strings.Split(c, "\n") {
			if out := run(line); !strings.Contains(out, "web") {
				t.Errorf("%s prints\n%s", line, out)
			}
		}
	}
	if _, err := m.get("http://" + node.Address4 + ":8080/"); err != nil {
		t.Error(err)
	}
	if got := strings.Fields(run("crictl exec $(crictl ps -q) cat /proc/self/uid_map")); len(got) != 3 || got[0] != "0" || got[1] == "0" {
		t.Errorf("the pod with hostUsers: false has the users %s", got)
	}
	if got := run("husk ps -a"); strings.Contains(got, "web") {
		t.Errorf("husk ps -a shows a pod of the kubelet:\n%s", got)
	}

	// A restart of huskd disturbs neither the pod nor the kubelet.
	before := containers(pod)
	run("systemctl stop huskd; systemctl start huskd")
	node.Eventually(t, time.Minute, func() string {
		if now := m.pod("web-node"); now == nil || !ready(now) || fmt.Sprint(containers(now)) != fmt.Sprint(before) {
			return "the pod is " + describe(now)
		}
		return ""
	})

	follow("There and back")
	if got := run("cat /etc/kubernetes/kubelet.yaml /etc/crictl.yaml"); strings.Contains(got, "husk.sock") || strings.Count(got, "containerd.sock") != 3 {
		t.Errorf("the sockets are not exchanged:\n%s", got)
	}
	if r := m.runtime(); len(r.sandboxes)+len(r.containers) > 0 {
		t.Errorf("huskd has\n%s", r)
	}
	// And back.
	back := strings.NewReplacer("husk/husk", "containerd/containerd", "containerd/containerd", "husk/husk")
	run(back.Replace(p.Section("There and back").Commands[0][strings.Index(p.Section("There and back").Commands[0], "sed "):]))
	run("systemctl start kubelet")
	node.Eventually(t, 2*time.Minute, func() string {
		if now := m.pod("web-node"); now == nil || !ready(now) || fmt.Sprint(containers(now)) == fmt.Sprint(before) {
			return "the pod is " + describe(now)
		}
		return ""
	})
	follow("There and back")
	run("husk shutdown")
	node.Eventually(t, time.Minute, func() string {
		if m.Serves() {
			return "huskd serves"
		}
		return ""
	})
	run("umount /var/lib/kubelet; umount /var/lib/kubelet /etc") // the kubelet bind-mounts its directory on itself
	m.Must("umount", "/var/log")
	m.removeCgroups()
	m.NothingLeft()
}
