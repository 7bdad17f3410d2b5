package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMonitors checks that a process is created in the cgroup of monitors, which stays as long as
// the process runs.
func TestMonitors(t *testing.T) {
	for name, c := range modes(t) {
		t.Run(name, func(t *testing.T) {
			path := fmt.Sprintf("/husk-test-%d-%d-monitors", os.Getpid(), time.Now().UnixNano())
			open := func() *os.File {
				dir, err := OpenMonitors(c, path)
				if err != nil {
					t.Fatal(err)
				}
				return dir
			}
			dir := open()
			if !c.Mode.Unified() {
				if err := CloseMonitors(dir); dir != nil || err != nil {
					t.Errorf("on v1: %v, %v", dir, err)
				}
				return
			}
			cmd := exec.Command("cat")
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
			stdin, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			table, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
			if !strings.Contains(string(table), ":"+path+"\n") {
				t.Errorf("the process is in the cgroups\n%s", table)
			}
			if err := CloseMonitors(dir); err != nil {
				t.Errorf("with a process: %v", err)
			}
			dir = open() // as the next huskd does
			_ = stdin.Close()
			_ = cmd.Wait()
			if err := CloseMonitors(dir); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(dir.Name()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("without a process the cgroup stays: %v", err)
			}
		})
	}
}
