// Package companion is what husk-bgp and husk-wireguard have in common: they are installed beside
// huskd, started by it, and outlive it. A companion writes a line to its standard output: "ok" once
// it is ready, and otherwise what failed.
package companion

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Find returns the path of a companion: beside this program, or in PATH.
func Find(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside huskd nor in PATH: install it", name)
	}
	return path, nil
}

const (
	ok = "ok\n"
	// startTime is how long a companion may take until it is ready.
	startTime = 10 * time.Second
)

// Start starts the companion at a path in the network namespace of the calling thread, and returns
// when it is ready. One that isn't in time is killed. Cgroup, which may be nil, is the directory of
// the cgroup to start it in, on cgroup v2.
func Start(cgroup *os.File, program string, args ...string) error {
	ready, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", report, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	err = cmd.Start()
	_ = report.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	go func() { _ = cmd.Wait() }() // so that it doesn't stay as a zombie
	_ = ready.SetReadDeadline(time.Now().Add(startTime))
	answer, err := bufio.NewReader(ready).ReadString('\n')
	if err != nil || answer != ok {
		_ = cmd.Process.Kill()
		why := "it ended without saying why"
		if errors.Is(err, os.ErrDeadlineExceeded) {
			why = fmt.Sprintf("it isn't ready after %v", startTime)
		}
		return fmt.Errorf("start %s: %s", program, cmp.Or(strings.TrimSpace(answer), why))
	}
	return nil
}

// Main is the main function of a companion. Usage is its command line, "husk-bgp SOCKET". It calls
// run with the arguments, which calls ready when it is, and returns when the companion ends.
func Main(usage string, run func(args []string, ready func()) error) {
	name, _, _ := strings.Cut(usage, " ")
	if len(os.Args) != len(strings.Fields(usage)) {
		fmt.Fprintf(os.Stderr, "%s: usage: %s; huskd starts it\n", name, usage)
		os.Exit(2)
	}
	// A terminal or a service that ends must not end it.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT)
	err := run(os.Args[1:], func() {
		fmt.Print(ok)
		_ = os.Stdout.Close()
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
