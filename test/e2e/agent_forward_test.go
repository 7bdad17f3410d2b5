package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// portForward starts husk port-forward. It returns the local ports, in the order of args, and a
// function that stops it and returns its stderr.
func (w *testEnv) portForward(args ...string) (local []string, end func() (errs string)) {
	w.t.Helper()
	cmd := w.Command(w.t.Context(), w.Binary("husk"), append([]string{"--socket", "unix://" + w.State + "/husk.sock", "port-forward", "--address", "127.0.0.1"}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for range args[1:] {
		line, err := lines.ReadString('\n')
		found := regexp.MustCompile(`^Forwarding from 127\.0\.0\.1:([0-9]+) -> [0-9]+\n$`).FindStringSubmatch(line)
		if err != nil || found == nil {
			w.t.Fatalf("husk port-forward printed %q, %v; %s", line, err, errs.String())
		}
		local = append(local, found[1])
	}
	go func() { _, _ = lines.WriteTo(&bytes.Buffer{}) }() // its later output
	return local, func() string {
		w.t.Helper()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		_ = cmd.Wait() // it was interrupted
		return errs.String()
	}
}

// TestPortForward reaches servers on a pod's loopback from the node, by the number or the name of
// the port.
func TestPortForward(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const ports = "ports: [{name: web, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}], "
	w.run(podOf("inner", only(ports+"command: "+shell("mkdir /tmp/w; dd if=/dev/urandom of=/tmp/w/big bs=1M count=20 2>/dev/null; echo inside >/tmp/w/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp/w")+
		", readinessProbe: {exec: {command: [wget, -qO, /dev/null, 'http://127.0.0.1:8080/']}, periodSeconds: 1}")), "--wait")
	local, end := w.portForward("inner", ":8080", ":web", "0:81")
	for _, port := range local[:2] {
		if got := w.Must("busybox", "wget", "-qO-", "http://127.0.0.1:"+port+"/"); got != "inside\n" {
			t.Errorf("through port %s: %q", port, got)
		}
	}
	// Concurrent connections each transfer the whole file.
	want := strings.Fields(w.sh("inner", "sha256sum /tmp/w/big"))[0]
	sums := make(chan string)
	for range 4 {
		go func() {
			out, err := w.Command(t.Context(), "sh", "-c", "busybox wget -qO- http://127.0.0.1:"+local[0]+"/big | sha256sum").Output()
			sums <- fmt.Sprint(strings.TrimSuffix(string(out), "  -\n"), err)
		}()
	}
	for range 4 {
		if got := <-sums; got != want+"<nil>" {
			t.Errorf("the file arrived with the checksum %s, want %s", got, want)
		}
	}
	if r := w.Run("busybox", "wget", "-qO-", "http://127.0.0.1:"+local[2]+"/"); r.Code == 0 {
		t.Error("port 81 answers, though nothing listens on it")
	}
	if errs := end(); !strings.Contains(errs, "husk: port 81 of pod default/inner: forward port 81: ") || !strings.Contains(errs, "connection refused") {
		t.Error(errs)
	}
	w.fails("UDP", w.Husk("port-forward", "inner", ":dns"), 1, "husk: port dns of pod default/inner is UDP: only TCP can be forwarded")
	w.fails("no name", w.Husk("port-forward", "inner", ":none"), 1, `husk: pod default/inner has no port "none": its named ports are web, dns`)
	w.fails("no named ports", w.Husk("port-forward", "other", ":none"), 1, `husk: pod default/other has no port "none" and no named ports: give a number from 1 to 65535`)
	w.fails("no pod", w.Husk("port-forward", "nobody", ":80"), 1, `husk: no pod "nobody": husk ps -a lists them`)

	// It ends with the pod.
	local, end = w.portForward("inner", ":web")
	w.MustHusk("stop", "inner")
	if r := w.Run("busybox", "wget", "-qO-", "http://127.0.0.1:"+local[0]+"/"); r.Code == 0 {
		t.Error("a stopped pod answers")
	}
	if errs := end(); !strings.Contains(errs, "husk: lost pod default/inner: pod default/inner has no network now: it is Stopped") {
		t.Error(errs)
	}
	w.fails("a stopped pod", w.Husk("port-forward", "inner", ":web"), 1, "husk: pod default/inner has no network now: it is Stopped")
	w.remove("inner")

	// With hostNetwork, the pod's loopback is the node's.
	w.run(podOf("host", "hostNetwork: true, "+only("command: "+shell("exec httpd -f -p 127.0.0.1:8099 -h /www"))), "--wait")
	local, end = w.portForward("host", ":8099")
	node.Eventually(t, 30*time.Second, func() string {
		if r := w.Run("busybox", "wget", "-qO-", "http://127.0.0.1:"+local[0]+"/cgi-bin/index.cgi"); r.Code != 0 {
			return r.Stderr
		}
		return ""
	})
	end()
	w.remove("host")
	w.end()
}

// TestTop checks that husk top reports the usage of a pod and of each of its containers, and that
// the sums are right.
func TestTop(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.run(podOf("busy", "containers: [{name: spins, image: 'localhost/web:1', resources: {limits: {cpu: 200m, memory: 64Mi}}, command: "+shell("while :; do :; done")+"}, "+
		"{name: hoards, image: 'localhost/web:1', resources: {limits: {memory: 128Mi}}, command: "+shell("a=$(yes xxxxxxxx | head -c 20000000); sleep 1000 & sleep 1000; echo $a")+"}]"), "--wait")
	type used struct {
		Name                                string
		CPUCores                            float64
		MemoryBytes, MemoryLimit, Processes uint64
	}
	type pod struct {
		used
		Network    *struct{ ReceivedBytes, SentBytes float64 }
		Containers []struct {
			used
			MemoryLimitBytes uint64
		}
	}
	// The second container takes a moment to allocate its memory.
	node.Eventually(t, 30*time.Second, func() string {
		var pods []pod
		out := w.MustHusk("top", "busy", "-o", "json")
		if err := json.Unmarshal([]byte(out), &pods); err != nil {
			t.Fatal(err)
		}
		if len(pods) != 1 || len(pods[0].Containers) != 2 {
			return out
		}
		p, spins, hoards := pods[0], pods[0].Containers[0], pods[0].Containers[1]
		switch {
		case spins.CPUCores < 0.05 || spins.CPUCores > 0.4 || p.CPUCores < spins.CPUCores/2,
			hoards.MemoryBytes < 19<<20 || p.MemoryBytes < hoards.MemoryBytes,
			spins.MemoryLimitBytes != 64<<20 || hoards.MemoryLimitBytes != 128<<20,
			hoards.Processes < 2 || p.Processes < spins.Processes+hoards.Processes,
			p.Network == nil:
			return out
		}
		return ""
	})
	if out := w.MustHusk("top"); !regexp.MustCompile(`(?m)^busy +[0-9]+m +[0-9]+Mi .* +[0-9]+ .*/s$`).MatchString(out) || !strings.Contains(out, "\nother ") {
		t.Error(out)
	}
	w.remove("busy")
	w.end()
}

// TestRunWaits checks that run --wait waits until pods with restartPolicy Never have ended, and
// that a sidecar that is killed afterwards doesn't make them failed.
func TestRunWaits(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	sidecar := "restartPolicy: Never, initContainers: [{name: s, image: 'localhost/web:1', restartPolicy: Always, command: " + shell("trap '' TERM; while :; do sleep 0.1; done") + "}], "
	r := w.run(podOf("job", sidecar+only("command: "+shell("sleep 1; exit 0"))), "--wait")
	if r.Code != 0 || !strings.HasPrefix(r.Stdout, "pod default/job completed in ") || !strings.Contains(r.Stderr, "pod default/job ready at ") {
		t.Errorf("husk run --wait of a job: %+v", r)
	}
	if p := w.eventually("job", "ended", func(p listed) bool { return p.Phase == "Succeeded" && p.Containers[0].State == "Terminated" }); p.Status != "Completed" {
		t.Errorf("after its sidecar was killed, the pod is %+v", p)
	}
	r = w.run(podOf("long", "restartPolicy: Never, "+only("command: [sleep, '1000']")), "--wait", "--timeout", "3s")
	if r.Code != 1 || !strings.HasSuffix(r.Stderr, "husk: not completed within 3s: default/long (running): they keep running, see husk ps -a\n") {
		t.Errorf("husk run --wait --timeout of a long job: %+v", r)
	}
	w.remove("job", "long")
	w.end()
}
