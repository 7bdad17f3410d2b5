package crash

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	seed   = flag.Uint64("seed", 1, "of the schedules")
	length = flag.Duration("for", 12*time.Second, "how long each schedule goes on")
)

// verbs are the actions of a schedule. Frequent ones are listed more than once.
var verbs = strings.Fields(`
	up up up up up up down down down gone gone gone gone list
	huskd huskd conmon runc runc container pause plugin
	full files readonly hang reopen policy policy`)

// TestSchedule runs a schedule with Husk's own network. Policies deny pods everything from outside,
// so nothing of what is tried from there may ever reach one, whatever else changes.
func TestSchedule(t *testing.T) {
	t.Parallel()
	m := newMachine(t, *seed, false)
	m.declare("outside.yaml", outsidePolicy)
	m.readManifests()
	m.tableHas("at the start", 1)
	tr, w := m.sprayFromOutside()
	carryOut(t, m, func() {
		m.nothingPassed(tr, w)
		for _, name := range append(podNames, "bystander", "outside") {
			m.declare(name+".yaml", "")
		}
		m.tableHas("without policies", -1)
	})
}

// TestScheduleOfCNI runs a schedule with the network of a CNI plugin.
func TestScheduleOfCNI(t *testing.T) {
	t.Parallel()
	carryOut(t, newMachine(t, *seed+1, true), func() {})
}

// carryOut runs a schedule. It calls end when the pods are at rest.
func carryOut(t *testing.T, m *machine, end func()) {
	steps := 0
	for end := time.Now().Add(*length); time.Now().Before(end) && !t.Failed(); steps++ {
		m.step(verbs[m.r.IntN(len(verbs))])
	}
	m.calm()
	end()
	m.checkBystander()
	m.empty()
	kills := 0
	var did []string
	for _, what := range slices.Sorted(maps.Keys(m.did)) {
		if strings.HasPrefix(what, "kill") {
			kills += m.did[what]
		}
		did = append(did, fmt.Sprintf("%d × %s", m.did[what], what))
	}
	t.Logf("seed %d: %d steps with %d kills: %s", *seed, steps, kills, strings.Join(did, ", "))
	if t.Failed() {
		t.Logf("again: go test ./test/crash -run '%s$' -seed %d -for %v", t.Name(), *seed, *length)
	}
}

// pause waits for a random time, usually a short one.
func (m *machine) pause() {
	time.Sleep(time.Duration(m.r.ExpFloat64() * float64(15*time.Millisecond)))
}

// podNames are those of the pods that schedules create and remove.
var podNames = []string{"a", "b", "c", "shared-a", "shared-b"}

func (m *machine) step(verb string) {
	m.pause()
	name, attempt := podNames[m.r.IntN(len(podNames))], m.r.IntN(3)/2
	switch verb {
	case "up":
		m.call("up "+name, func(ctx context.Context) error {
			_, _, err := m.up(ctx, name, attempt)
			return err
		})
	case "down", "gone":
		m.call(verb+" "+name, func(ctx context.Context) error { return m.end(ctx, name, verb == "gone") })
	case "list":
		m.call(verb, func(ctx context.Context) error {
			_, err := m.cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			return err
		})
	case "huskd":
		m.note("kill huskd")
		m.did["kill huskd"]++
		m.d.Kill()
		m.pause()
		m.restart()
	case "reopen":
		m.note("end huskd in good order")
		m.did[verb]++
		m.d.Stop()
		m.restart()
	case "conmon":
		m.kill("conmon")
	case "runc":
		m.kill("runc", "runc:[1:CHILD]", "runc:[2:INIT]", "exe")
	case "container":
		m.kill("sleep", "busybox")
	case "pause":
		m.kill("pause")
	case "plugin":
		m.kill("moody", "ptp", "host-local")
	case "policy":
		if m.hang == "" { // with Husk's own network
			m.did[verb]++
			m.changePolicy([]string{name, "bystander"}[m.r.IntN(2)])
		}
	case "full", "files", "hang":
		m.fault(verb)
	case "readonly":
		m.note("a read-only disk")
		m.did[verb]++
		m.readOnly()
	}
}

// fault makes something fail for a while, and continues the schedule meanwhile.
func (m *machine) fault(kind string) {
	var begin, end func()
	switch kind {
	case "full":
		begin, end = func() { m.fill(true) }, func() { m.fill(false) }
	case "files":
		begin, end = func() { m.limitFiles(true) }, func() { m.limitFiles(false) }
	case "hang":
		if m.hang == "" {
			return
		}
		begin = func() { m.hangs = os.WriteFile(m.hang, nil, 0o600) == nil }
		end = func() { m.hangs = os.Remove(m.hang) != nil }
	}
	m.note("%s begins", kind)
	m.did[kind]++
	begin()
	for range 3 + m.r.IntN(8) {
		m.step([]string{"up", "up", "down", "gone", "gone", "list", "conmon", "runc", "plugin"}[m.r.IntN(9)])
	}
	if m.r.IntN(3) == 0 && kind == "hang" {
		m.step("huskd")
	}
	end()
	m.note("%s ends", kind)
}

// call makes a client's request, and doesn't always wait for the answer.
func (m *machine) call(what string, fn func(context.Context) error) {
	m.did[strings.Fields(what)[0]]++
	m.note("%s", what)
	wait := 20 * time.Second
	if m.hangs || m.r.IntN(4) == 0 {
		wait = time.Duration(m.r.IntN(300)) * time.Millisecond
	}
	m.places <- struct{}{}
	m.calls.Go(func() {
		defer func() { <-m.places }()
		ctx, cancel := context.WithTimeout(m.t.Context(), wait)
		defer cancel()
		_ = fn(ctx) // that it may fail is what this is about
	})
}

// end stops or removes the sandboxes of a pod.
func (m *machine) end(ctx context.Context, name string, remove bool) error {
	list, err := m.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, sb := range list.GetItems() {
		switch {
		case sb.GetMetadata().GetName() != name:
		case remove:
			_, err = m.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.GetId()})
		default:
			_, err = m.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sb.GetId()})
		}
	}
	return err
}

// calm ends the plugins that huskd waits for, and waits for the requests in flight.
func (m *machine) calm() {
	for _, p := range m.processes() {
		if p.command == "sleep 1000 " && strings.Contains(m.parentOf(p.pid), "huskd") {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	m.calls.Wait()
}

// parentOf returns the name of a process's parent. huskd must kill processes that have lost their
// parent.
func (m *machine) parentOf(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return ""
	}
	name, _ := os.ReadFile("/proc/" + fields[1] + "/comm")
	return string(name)
}
