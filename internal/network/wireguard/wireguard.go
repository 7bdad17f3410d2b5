// Package wireguard has this node's keys of WireGuard, and starts the program that takes the place
// of a kernel's WireGuard.
package wireguard

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Program is the program's name. It is installed beside huskd.
const Program = "husk-wireguard"

// FindProgram returns the path of the program: beside this one, or in PATH.
func FindProgram() (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), Program); executable(beside) {
			return beside, nil
		}
	}
	path, err := exec.LookPath(Program)
	if err != nil {
		return "", fmt.Errorf("the kernel has no WireGuard, and %s is neither beside huskd nor in PATH: install it", Program)
	}
	return path, nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// startTime is how long the program may take to make its link.
const startTime = 10 * time.Second

// Start starts the program for a link in the network namespace of the calling thread. It returns
// when the link is there. The program ends when the link is deleted.
func Start(program, link string, mtu int) error {
	ready, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(program, link, strconv.Itoa(mtu))
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", report, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = report.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	go func() { _ = cmd.Wait() }() // so that it doesn't stay as a zombie
	_ = ready.SetReadDeadline(time.Now().Add(startTime))
	answer, err := bufio.NewReader(ready).ReadString('\n')
	if err != nil || answer != "ok\n" {
		_ = cmd.Process.Kill()
		return fmt.Errorf("start %s: %s", program, cmp.Or(strings.TrimSpace(answer), fmt.Sprintf("no link after %v", startTime)))
	}
	return nil
}
