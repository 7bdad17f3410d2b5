package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// owned is a pod of a workload in the output of husk ps.
type owned struct {
	Name, Owner, Phase string
	Ready              bool
}

// podsOf returns the pods of a workload, sorted by name.
func (w *testEnv) podsOf(owner string) (out []owned) {
	w.t.Helper()
	var pods []owned
	if err := json.Unmarshal([]byte(w.MustHusk("ps", "-a", "-o", "json")), &pods); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range pods {
		if p.Owner == owner {
			out = append(out, p)
		}
	}
	return out
}

// mustRun runs a manifest and waits for it.
func (w *testEnv) mustRun(manifest string) string {
	w.t.Helper()
	r := w.run(manifest, "--wait", "--timeout", "60s")
	if r.Code != 0 {
		w.t.Fatalf("%+v\n%s\n%s", r, w.Husk("ps", "-a").Stdout, w.Husk("events").Stdout)
	}
	return r.Stdout
}

const sleeperSpec = "terminationGracePeriodSeconds: 1, containers: [{name: c, image: 'localhost/web:1', env: [{name: V, value: '%[3]s'}], command: [/bin/sh, -c, 'trap \"exit 0\" TERM; sleep 1000 & wait']}]"

func deployment(name string, replicas int, version string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {`+sleeperSpec+"}\n", name, replicas, version)
}

// TestDeployment runs, changes, scales and restarts a Deployment, over kills and a reboot.
func TestDeployment(t *testing.T) {
	t.Parallel()

	n := node.New(t)
	dir := n.Dir + "/manifests"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	flags := node.Flags("--manifests", dir)
	w := testEnvOn(t, n, flags)
	names := func(want int) (out []string) {
		t.Helper()
		node.Eventually(t, 60*time.Second, func() string {
			out = nil
			for _, p := range w.podsOf("deployment/default/web") {
				if p.Ready {
					out = append(out, p.Name)
				}
			}
			if len(w.podsOf("deployment/default/web")) == want && len(out) == want {
				return ""
			}
			return fmt.Sprintf("pods %v, want %d that are ready", w.podsOf("deployment/default/web"), want)
		})
		return out
	}
	if out := w.mustRun(deployment("web", 2, "1")); !strings.HasPrefix(out, "deployment default/web ready in ") {
		t.Errorf("husk run says %q", out)
	}
	first := names(2)
	if !strings.HasPrefix(first[0], "web-") || strings.Count(first[0], "-") != 2 {
		t.Errorf("the pods are %v", first)
	}
	if r := w.run(deployment("web", 2, "1")); r.Code != 0 || r.Stdout != "deployment default/web unchanged, ready\n" {
		t.Errorf("running it again: %+v", r)
	}
	// A change replaces the pods, also if huskd is killed meanwhile.
	w.run(deployment("web", 2, "2"))
	w.d.Kill()
	w.d = w.Huskd(flags)
	w.MustHusk("rollout", "status", "deployment/web", "--wait", "--timeout", "60s")
	second := names(2)
	if slices.ContainsFunc(second, func(name string) bool { return slices.Contains(first, name) }) {
		t.Errorf("pods %v after the change, %v before", second, first)
	}
	// A removed pod is replaced. The number of pods survives a reboot.
	w.MustHusk("rm", "-f", second[0])
	w.MustHusk("scale", "deployment/web", "3")
	names(3)
	w.d.Stop()
	n.Reboot()
	w.d = w.Huskd(flags)
	third := names(3)
	w.MustHusk("restart", "deployment/web")
	w.MustHusk("rollout", "status", "deployment/web", "--wait", "--timeout", "60s")
	if fourth := names(3); slices.Contains(fourth, third[0]) {
		t.Errorf("pods %v after the restart, %v before", fourth, third)
	}
	if out := w.MustHusk("rollout", "status"); !strings.Contains(out, "deployment/web") || !strings.Contains(out, "3/3") || !strings.Contains(out, "Available") {
		t.Errorf("husk rollout status prints %s", out)
	}
	if out := w.MustHusk("ps"); !strings.Contains(out, "OWNER") || !strings.Contains(out, "deployment/web") {
		t.Errorf("husk ps prints %s", out)
	}
	// A program that runs in a workload runs in one of its pods.
	if host := strings.TrimSpace(w.MustHusk("exec", "deployment/web", "--", "hostname")); !slices.Contains(names(3), host) {
		t.Errorf("a pod of deployment/web is %q", host)
	}
	w.MustHusk("rm", "deployment/web")
	w.fails("a workload that is gone", w.Husk("logs", "deploy/web"), 1, "husk: deployment/default/web has no pods: husk rollout status lists workloads")
	if left := w.podsOf("deployment/default/web"); len(left) > 0 {
		t.Errorf("the pods %v are left", left)
	}
	w.fails("a workload that is gone", w.Husk("restart", "deployment/web"), 1, "husk: no deployment/web: husk rollout status lists what there is")
	// The directory declares workloads too.
	path := write(t, n, "manifests/web.yaml", deployment("web", 1, "1"))
	names(1)
	w.fails("a declared workload", w.Husk("rm", "deployment/web"), 1, "husk: deployment/default/web is declared in "+dir+"/web.yaml: remove it there")
	write(t, n, "manifests/web.yaml", deployment("web", 2, "1"))
	names(2)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	names(0)
	w.MustHusk("rm", "-f", "other")
	w.d.Stop()
	n.NothingLeft()
}

// TestSetsAndJobs runs the other kinds of workloads, all from one file.
func TestSetsAndJobs(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const once = "restartPolicy: Never, terminationGracePeriodSeconds: 1, containers: [{name: c, image: 'localhost/web:1', command: [/bin/sh, -c, '%s']}]"
	sets := func(version string) string {
		spec := strings.ReplaceAll(sleeperSpec, "%[3]s", version)
		return fmt.Sprintf(`apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: StatefulSet
  metadata: {name: db}
  spec:
    replicas: 2
    serviceName: db
    selector: {matchLabels: {app: db}}
    template: {metadata: {labels: {app: db}}, spec: {%[1]s}}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: agent}
  spec:
    selector: {matchLabels: {app: agent}}
    template: {metadata: {labels: {app: agent}}, spec: {%[1]s}}
`, spec)
	}
	jobs := fmt.Sprintf(`apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec: {schedule: "* * * * *", jobTemplate: {spec: {template: {spec: {%s}}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: count}
spec: {completions: 2, parallelism: 2, completionMode: Indexed, template: {spec: {%s}}}
`, fmt.Sprintf(once, "true"), fmt.Sprintf(once, "echo index $JOB_COMPLETION_INDEX"))
	w.mustRun(jobs)
	began := time.Now()
	w.mustRun(sets("1"))
	if pods := w.podsOf("statefulset/default/db"); len(pods) != 2 || !w.pod("db-0").Ready || !w.pod("db-1").Ready {
		t.Errorf("the stateful set has the pods %v", pods)
	}
	if host := w.sh("db-1", "hostname"); host != "db-1" {
		t.Errorf("db-1 has the host name %s", host)
	}
	agent := w.podsOf("daemonset/default/agent")
	w.mustRun(sets("2"))
	if v := w.sh("db-0", "echo $V"); v != "2" {
		t.Errorf("db-0 has version %s after the change", v)
	}
	if now := w.podsOf("daemonset/default/agent"); len(agent) != 1 || len(now) != 1 || now[0].Name == agent[0].Name {
		t.Errorf("the daemon set has the pods %v, %v before the change", now, agent)
	}
	var logs []string
	for _, p := range w.podsOf("job/default/count") {
		logs = append(logs, strings.TrimSpace(w.MustHusk("logs", p.Name)))
	}
	slices.Sort(logs)
	if !slices.Equal(logs, []string{"index 0", "index 1"}) {
		t.Errorf("the job's pods said %q", logs)
	}
	failing := "apiVersion: batch/v1\nkind: Job\nmetadata: {name: bad}\nspec: {backoffLimit: 0, template: {spec: {" + fmt.Sprintf(once, "exit 3") + "}}}\n"
	if r := w.run(failing, "--wait", "--timeout", "60s"); r.Code != 1 || !strings.Contains(r.Stdout, "job default/bad failed") || !strings.Contains(r.Stdout, "BackoffLimitExceeded") {
		t.Errorf("a job that fails: %+v", r)
	}
	if out := w.MustHusk("events", "job/bad"); !strings.Contains(out, "BackoffLimitExceeded") {
		t.Errorf("the events of the job are %s", out)
	}
	w.d.Kill()
	w.d = w.Huskd()
	node.Eventually(t, 90*time.Second, func() string {
		if out := w.MustHusk("rollout", "status"); !strings.Contains(out, "job/tick-") {
			return fmt.Sprintf("no job of the schedule %v after the start: %s", time.Since(began), out)
		}
		return ""
	})
	w.MustHusk("rm", "cronjob/tick", "job/count", "job/bad", "sts/db", "ds/agent")
	if out := w.MustHusk("ps", "-a"); strings.Contains(out, "OWNER") {
		t.Errorf("pods are left: %s", out)
	}
	w.end()
}
