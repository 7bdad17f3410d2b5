package pidfd

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spawn starts a script, which must print a line when it is ready. It returns the process and the
// line.
func spawn(t *testing.T, script string) (oci.Process, string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p, strings.TrimSpace(line)
}

func TestStartTime(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21 22\n"
	for _, name := range []string{"(sh)", "(a b)", "(a) S 1 2 (b)", "())", "(\n)"} {
		if got, err := startTime([]byte("7 " + name + rest)); err != nil || got != 4711 {
			t.Errorf("start time of %q: %d, %v; want 4711", name, got, err)
		}
	}
	for _, stat := range []string{"", "7", "7 (sh)", "7 (sh) S 1 2", "7 (sh" + rest[:20], "7 (sh)" + strings.Replace(rest, "4711", "x", 1)} {
		if got, err := startTime([]byte(stat)); err == nil {
			t.Errorf("start time of %q: %d, want an error", stat, got)
		}
	}
}

// TestPIDOutlivesProcess checks a PID that no process has, but a session and a process group, and
// one that a thread has.
func TestPIDOutlivesProcess(t *testing.T) {
	_, line := spawn(t, "setsid sh -c 'sleep 1000 >/dev/null & echo $$ $!' & wait; sleep 1000")
	leader, child, _ := strings.Cut(line, " ")
	pid, err := strconv.Atoi(child)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	pid, err = strconv.Atoi(leader)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := Identify(pid); errors.Is(err, ErrGone) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the session's leader still runs after 10 s")
		}
		time.Sleep(time.Millisecond)
	}
	if err := Signal(oci.Process{PID: pid, Start: 1}, unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("signal to the leader of a session: %v, want %v", err, ErrGone)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads of this process: %v, %v", threads, err)
	}
	thread, err := strconv.Atoi(threads[len(threads)-1].Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := Signal(oci.Process{PID: thread, Start: 1}, unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("signal to a thread: %v, want %v", err, ErrGone)
	}
}

func TestSignalAndWait(t *testing.T) {
	p, _ := spawn(t, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done")
	f, err := Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	brief, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := Wait(brief, f); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait for a running process: %v, want a timeout", err)
	}
	again, err := Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := Signal(p, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := Wait(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	// Wait has reaped it.
	if _, err := Identify(p.PID); !errors.Is(err, ErrGone) {
		t.Errorf("Identify after the exit: %v, want %v", err, ErrGone)
	}
	if _, err := Open(p); !errors.Is(err, ErrGone) {
		t.Errorf("Open after the exit: %v, want %v", err, ErrGone)
	}
	for _, err := range []error{Signal(p, unix.SIGTERM), Send(again, unix.SIGTERM)} {
		if !errors.Is(err, ErrGone) {
			t.Errorf("signal after the exit: %v, want %v", err, ErrGone)
		}
	}
	if err := End(t.Context(), p); err != nil {
		t.Errorf("End after the exit: %v", err)
	}
}

// TestReusedPID checks that a process with the PID but another start time isn't touched.
func TestReusedPID(t *testing.T) {
	p, _ := spawn(t, "echo ready; exec sleep 1000")
	other := p
	other.Start--
	if err := Signal(other, unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Errorf("signal to an earlier process: %v, want %v", err, ErrGone)
	}
	if err := End(t.Context(), other); err != nil {
		t.Errorf("End of an earlier process: %v", err)
	}
	if now, err := Identify(p.PID); err != nil || now != p {
		t.Errorf("the process with the same PID is %+v, %v; want it running", now, err)
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if err := Signal(oci.Process{PID: pid}, unix.SIGKILL); !errors.Is(err, ErrGone) {
			t.Errorf("signal to process %d: %v, want %v", pid, err, ErrGone)
		}
	}
}

func TestEndKillsChildren(t *testing.T) {
	p, line := spawn(t, "trap '' TERM; sleep 1000 & echo $!; wait")
	child, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if got := Children(p.PID); len(got) != 1 || got[0] != child {
		t.Errorf("children are %v, want %d", got, child)
	}
	if err := End(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{p.PID, child} {
		stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if len(stat) > 0 && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("still running: %s", stat)
		}
	}
}
