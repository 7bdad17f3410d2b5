package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// eventually waits until a pod meets a condition, which what describes.
func (w *testEnv) eventually(pod, what string, want func(listed) bool) listed {
	w.t.Helper()
	var p listed
	node.Eventually(w.t, 30*time.Second, func() string {
		if p = w.pod(pod); want(p) {
			return ""
		}
		return fmt.Sprintf("pod %s is not %s: %+v", pod, what, p)
	})
	return p
}

func isReady(p listed) bool { return p.Ready }

// sh runs a script in a pod's container c.
func (w *testEnv) sh(pod, script string) string {
	w.t.Helper()
	return strings.TrimSpace(w.MustHusk("exec", pod, "-c", "c", "--", "sh", "-c", script))
}

const serve = "exec httpd -f -p 80 -h /www"

// TestReadinessProbe checks that a readiness probe decides whether the pod is ready, and that
// nothing else follows from it.
func TestReadinessProbe(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.run(podOf("web", only("command: "+shell(serve)+", ports: [{name: web, containerPort: 80}], readinessProbe: "+
		"{httpGet: {port: web, path: /release, httpHeaders: [{name: Host, value: a.test}]}, periodSeconds: 1, failureThreshold: 2}")))
	p := w.eventually("web", "probed", func(p listed) bool { return strings.Contains(p.Containers[0].Message, "404 Not Found") })
	if p.Ready || p.Phase != "Running" || !strings.Contains(w.MustHusk("ps"), "0/1") {
		t.Errorf("the pod that isn't ready is %+v", p)
	}
	w.sh("web", "echo x >/www/release")
	w.eventually("web", "ready", isReady)
	if out := w.MustHusk("ps"); strings.Contains(out, "0/1") {
		t.Error(out)
	}
	w.sh("web", "rm /www/release")
	p = w.eventually("web", "unready again", func(p listed) bool { return !p.Ready })
	if p.Containers[0].Restarts != 0 || p.Phase != "Running" {
		t.Errorf("the pod that became unready is %+v", p)
	}
	// What was ready before a restart of huskd is ready until its checks fail. What has started up
	// isn't asked again whether it has.
	w.sh("web", "echo x >/www/release")
	w.eventually("web", "ready", isReady)
	w.run(podOf("slow", only("command: "+shell("touch /tmp/new /tmp/ready; exec sleep 1000")+", startupProbe: {exec: {command: [test, -e, /tmp/new]}, periodSeconds: 1, failureThreshold: 1}, "+
		"readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 3600}")))
	w.eventually("slow", "ready", isReady)
	w.sh("slow", "rm /tmp/new")
	w.d.Kill()
	w.d = w.Huskd()
	for _, name := range []string{"web", "slow"} {
		if p := w.pod(name); !p.Ready || p.Containers[0].Restarts != 0 {
			t.Errorf("after a restart of huskd, pod %s is %+v", name, p)
		}
	}
	// One that fails while huskd is down is soon unready, however long its probe's period is.
	ready := fmt.Sprintf("/proc/%d/root/tmp/ready", w.pod("slow").Containers[0].Pid)
	w.d.Kill()
	w.Must("rm", ready)
	w.d = w.Huskd()
	w.eventually("slow", "unready", func(p listed) bool { return !p.Ready })
	w.remove("web", "slow")
	w.end()
}

// TestReadinessWhileStopping checks that the readiness probe of a container goes on while it is
// being stopped.
func TestReadinessWhileStopping(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.run(podOf("leaving", only("command: "+shell("trap '' TERM; touch /tmp/ready; while [ ! -e /tmp/end ]; do sleep 0.1; done")+
		", readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1, failureThreshold: 1}")))
	w.eventually("leaving", "ready", isReady)
	stop := w.Command(t.Context(), w.Binary("husk"), "--socket", "unix://"+w.State+"/husk.sock", "stop", "--time", "5m", "leaving")
	if err := stop.Start(); err != nil {
		t.Fatal(err)
	}
	p := w.eventually("leaving", "being stopped", func(p listed) bool { return p.Reason == "Terminating" })
	if !p.Containers[0].Ready {
		t.Errorf("the pod that is being stopped is %+v", p)
	}
	w.sh("leaving", "rm /tmp/ready")
	w.eventually("leaving", "unready", func(p listed) bool { return !p.Containers[0].Ready && p.Containers[0].State == "Running" })
	w.sh("leaving", "touch /tmp/end")
	if err := stop.Wait(); err != nil {
		t.Error(err)
	}
	w.remove("leaving")
	w.end()
}

// TestLivenessProbe checks that a container whose liveness probe fails is stopped, within the
// probe's grace period, and restarted according to the restartPolicy.
func TestLivenessProbe(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	alive := "livenessProbe: {exec: {command: [test, -e, /tmp/alive]}, periodSeconds: 1, failureThreshold: 2, terminationGracePeriodSeconds: 1}"
	w.run(podOf("again", only("command: "+shell("trap '' TERM; touch /tmp/alive; while :; do sleep 0.1; done")+", "+alive)), "--wait")
	w.sh("again", "rm /tmp/alive")
	w.eventually("again", "restarted", func(p listed) bool { return p.Ready && p.Containers[0].Restarts == 1 })
	w.run(podOf("never", "restartPolicy: Never, "+only("command: "+shell("trap 'exit 7' TERM; sleep 1000 & wait")+", "+alive)))
	w.eventually("never", "failed", func(p listed) bool { return p.Phase == "Failed" && p.Containers[0].ExitCode == 7 })
	w.run(podOf("failure", "restartPolicy: OnFailure, "+only("command: "+shell("trap 'exit 0' TERM; sleep 1000 & wait")+", "+alive)))
	w.eventually("failure", "restarted", func(p listed) bool { return p.Containers[0].Restarts > 0 })
	// A refused connection fails a probe too. A missing program says nothing about the container,
	// so it only makes an event.
	w.run(podOf("port", only("command: [sleep, '1000'], livenessProbe: {tcpSocket: {port: 81}, periodSeconds: 1, failureThreshold: 1}")))
	w.run(podOf("program", only("command: [sleep, '1000'], livenessProbe: {exec: {command: [/none]}, periodSeconds: 1, failureThreshold: 1}")))
	w.eventually("port", "restarted", func(p listed) bool { return p.Containers[0].Restarts > 0 })
	const message = `Liveness probe could not be carried out: /none: `
	p := w.eventually("program", "probed", func(_ listed) bool { return strings.Contains(w.MustHusk("events", "program"), message) })
	if p.Containers[0].Restarts > 0 || !p.Ready {
		t.Errorf("its probe can't be carried out, and the pod is %+v", p)
	}
	w.remove("again", "never", "failure", "port", "program")
	w.end()
}

// TestStartupProbe checks that, until a container has started, its other probes don't run, and that
// the containers after a sidecar wait for it.
func TestStartupProbe(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const volume = "volumes: [{name: v, emptyDir: {}}], "
	const mount = "volumeMounts: [{name: v, mountPath: /v}]"
	w.run(podOf("slow", only("command: "+shell("sleep 3; touch /tmp/up; "+serve)+
		", startupProbe: {tcpSocket: {port: 80}, periodSeconds: 1, failureThreshold: 60}, livenessProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1, failureThreshold: 1}")), "--wait")
	if p := w.pod("slow"); !p.Ready || p.Containers[0].Restarts != 0 {
		t.Errorf("the pod is %+v", p)
	}
	w.run(podOf("late", only("command: [sleep, '1000'], startupProbe: {tcpSocket: {port: 80}, periodSeconds: 1, failureThreshold: 2}")))
	w.eventually("late", "restarted", func(p listed) bool { return p.Containers[0].Restarts > 0 })
	w.run(podOf("sidecar", volume+"initContainers: [{name: s, image: 'localhost/web:1', restartPolicy: Always, "+mount+", command: [sleep, '1000'], startupProbe: {exec: {command: [test, -e, /v/go]}, periodSeconds: 1}}], "+
		only("command: [sleep, '1000'], "+mount)))
	p := w.eventually("sidecar", "waiting for its sidecar", func(p listed) bool { return len(p.Containers) == 2 && p.Containers[0].State == "Running" })
	if p.Reason != "Init:0/1" || p.Containers[1].State != "Waiting" {
		t.Errorf("while its sidecar starts, the pod is %+v", p)
	}
	w.MustHusk("exec", "sidecar", "-c", "s", "--", "touch", "/v/go")
	w.eventually("sidecar", "ready", isReady)
	w.remove("slow", "late", "sidecar")
	w.end()
}

// TestHooks runs postStart and preStop hooks.
func TestHooks(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	keep := func(name string) string {
		return "volumes: [{name: h, hostPath: {path: " + w.Dir + "/" + name + ", type: DirectoryOrCreate}}], "
	}
	const mount = "volumeMounts: [{name: h, mountPath: /h}], "
	log := func(name string) string { return strings.TrimSpace(w.Must("cat", w.Dir+"/"+name+"/f")) }
	const polite = "trap 'echo term >>/h/f; exit 0' TERM; echo up; sleep 1000 & wait"
	hooked := func(name, grace, hooks string) string {
		return strings.Replace(podOf(name, keep(name)+only(mount+"command: "+shell(polite)+", lifecycle: {"+hooks+"}")), "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: "+grace, 1)
	}
	script := func(s string) string { return "{exec: {command: " + shell(s) + "}}" }

	w.run(hooked("both", "30", "postStart: "+script("sleep 0.5; echo start >/h/f")+", preStop: "+script("sleep 0.5; echo stop >>/h/f")), "--wait")
	if got := log("both"); got != "start" {
		t.Errorf("when it is ready, the pod has logged %q", got)
	}
	w.MustHusk("stop", "both")
	if got := log("both"); got != "start\nstop\nterm" {
		t.Errorf("when it has stopped, the pod has logged %q", got)
	}

	// The hook's time counts towards the grace period, of which the container gets at least 2 s.
	w.run(hooked("long", "2", "preStop: {sleep: {seconds: 2}}"), "--wait")
	began := time.Now()
	w.MustHusk("stop", "long")
	if took := time.Since(began); took < 2*time.Second || log("long") != "term" {
		t.Errorf("stopping took %v, and the pod logged %q", took, log("long"))
	}

	// A hook that hangs is killed when the grace period ends; a stop without a grace period kills
	// it at once.
	w.run(hooked("hangs", "1", "preStop: "+script("echo hook >>/h/f; sleep 1000")), "--wait")
	w.MustHusk("stop", "hangs")
	if got := log("hangs"); got != "hook\nterm" {
		t.Errorf("the pod logged %q", got)
	}
	w.run(hooked("cut", "600", "preStop: "+script("echo hook >>/h/f; sleep 1000")), "--wait")
	stopping := make(chan node.Result, 1)
	go func() { stopping <- w.Husk("stop", "cut") }()
	node.Eventually(t, 20*time.Second, func() string {
		if r := w.Run("cat", w.Dir+"/cut/f"); !strings.Contains(r.Stdout, "hook") {
			return "the hook hasn't started"
		}
		return ""
	})
	w.MustHusk("stop", "-t", "0", "cut")
	if r := <-stopping; r.Code != 0 || log("cut") != "hook" {
		t.Errorf("%+v; the pod logged %q", r, log("cut"))
	}

	// A container whose postStart hook fails is stopped and restarted.
	w.run(hooked("fails", "30", "postStart: "+script("echo start >>/h/f; exit 3")))
	node.Eventually(t, 20*time.Second, func() string {
		if got := w.Run("cat", w.Dir+"/fails/f").Stdout; !strings.HasPrefix(got, "start\nterm\nstart") {
			return fmt.Sprintf("the pod logged %q", got)
		}
		return ""
	})

	// While the container of a failed hook runs on, the pod isn't ready.
	w.run(strings.Replace(podOf("stubborn", keep("stubborn")+only(mount+"command: "+shell("trap '' TERM; while [ ! -e /h/end ]; do sleep 0.1; done")+
		", lifecycle: {postStart: "+script("echo no luck; exit 3")+"}")), "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 600", 1))
	p := w.eventually("stubborn", "stopped for its hook", func(p listed) bool { return p.Reason == "PostStartHookError" })
	if c := p.Containers[0]; p.Ready || c.Ready || c.State != "Waiting" || c.Reason != p.Reason || !strings.Contains(c.Message, "exit code 3: no luck") {
		t.Errorf("while the container of a failed hook is being stopped, the pod is %+v", p)
	}
	if out := w.MustHusk("events", "stubborn"); !strings.Contains(out, "FailedPostStartHook") || !strings.Contains(out, "failed its postStart hook, will be restarted") {
		t.Error(out)
	}
	w.Must("touch", w.Dir+"/stubborn/end")
	w.eventually("stubborn", "restarted", func(p listed) bool { return p.Containers[0].Restarts > 0 })

	// An httpGet hook, and a stop signal from the manifest.
	w.run(podOf("asked", keep("asked")+only(mount+"ports: [{name: web, containerPort: 80}], command: "+shell("trap 'echo usr1 >/h/f; exit 0' USR1; "+
		"httpd -f -vv -p 80 -h /www 2>/h/asked & while :; do wait; done")+
		", readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1}, lifecycle: {stopSignal: SIGUSR1, preStop: {httpGet: {port: web, path: /bye}}}")), "--wait")
	w.MustHusk("stop", "asked")
	if got := log("asked"); got != "usr1" || !strings.Contains(w.Must("cat", w.Dir+"/asked/asked"), "url:/bye") {
		t.Errorf("the pod logged %q, and its server %q", got, w.Must("cat", w.Dir+"/asked/asked"))
	}
	w.remove("both", "long", "hangs", "cut", "fails", "stubborn", "asked")
	w.end()
}
