package cli

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Commands that run forever end silently on SIGINT and SIGTERM.
func TestSignalEndsCommand(t *testing.T) {
	t.Parallel()
	h, env := serve(t, web("hang", false))
	h.AddLog("default/web", "app", "first", false, time.Now())
	for name, args := range map[string][]string{
		"exec":   {"exec", "web", "--", "hang"},
		"attach": {"attach", "web"},
		"logs":   {"logs", "-f", "web"},
	} {
		for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
			t.Run(name+" "+signal.String(), func(t *testing.T) {
				t.Parallel()
				cmd := exec.Command("husk", args...)
				cmd.Env = append(os.Environ(), env...)
				var errs bytes.Buffer
				cmd.Stderr = &errs
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait()
				if got := cmd.ProcessState.ExitCode(); got != code || errs.Len() > 0 {
					t.Errorf("exit code %d, want %d: %s", got, code, &errs)
				}
			})
		}
	}
}

// A command whose output is no longer read ends on a signal, even in the middle of a write.
func TestSignalWhileBlocked(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("husk", "exec", "web", "--", "bytes", "100000000")
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d", code)
	}
}

// When the reader of a pipe is gone, SIGPIPE ends husk like any program.
func TestClosedPipe(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	cmd := exec.Command("husk", "exec", "web", "--", "bytes", "100000000")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	_ = cmd.Wait()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != syscall.SIGPIPE || errs.Len() > 0 {
		t.Errorf("ended with %v: %s", cmd.ProcessState, &errs)
	}
}

// A signal that was ignored at the start stays ignored, as nohup expects.
func TestIgnoredSignal(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	cmd := exec.Command("sh", "-c", `trap "" HUP; exec husk exec -i web -- cat`)
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for range 2 { // the first answer shows that husk is up
		if _, err := in.Write([]byte("here\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
