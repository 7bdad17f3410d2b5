// Package vm boots a virtual machine for tests that this host's kernel can't run: Debian's kernel
// with cgroup v2, modules loaded on demand and security modules. The root file system holds Husk,
// the runtimes and the tests. It needs no KVM.
package vm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs is the file that lists the programs that the machine's init runs, one after the other: a
// line each, of words separated by spaces. If there is a file SystemdPrograms, systemd then
// replaces init and runs its programs in a unit.
const (
	Programs        = "/etc/programs"
	SystemdPrograms = "/etc/programs.systemd"
)

// Protocol between the machine's init and this package, on the second serial port: a line that
// begins with Began names a program whose output follows; a line that begins with Ended has its
// name and exit code.
const (
	Began = "\x01began "
	Ended = "\x01ended "
)

// Outcome is the result of a program in the machine.
type Outcome struct {
	Program string
	Output  string
	// Code is its exit code as text; "none" if the machine ended first.
	Code string
}

// Machine is a virtual machine to boot.
type Machine struct {
	Kernel Kernel
	// Root must contain an /init, see package init below.
	Root *Initrd
	// Dir is a directory of this host for the machine's own files.
	Dir string
}

// Run boots the machine and waits until it has powered itself off. It returns the outcomes of its
// programs in the order of their start, and the kernel's console output. The error concerns the
// machine, not its programs.
func (m Machine) Run(ctx context.Context, watch func(line string)) (outcomes []Outcome, console string, err error) {
	initrd := filepath.Join(m.Dir, "initrd")
	if err := m.writeRoot(initrd); err != nil {
		return nil, "", err
	}
	log := filepath.Join(m.Dir, "console")
	// Under emulation, the mitigations of speculative execution and a fifth level of page tables
	// cost much and are of no use.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1536",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:"+log, "-serial", "stdio",
		"-kernel", m.Kernel.Image, "-initrd", initrd,
		"-append", "console=ttyS0 loglevel=5 panic=-1 random.trust_cpu=on mitigations=off no5lvl")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("virtual machine: %w: install the Debian package qemu-system-x86 (make deps)", err)
	}
	outcomes = collect(out, watch)
	err = cmd.Wait()
	raw, _ := os.ReadFile(log)
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("virtual machine: not done in time: %w", context.Cause(ctx))
	case err != nil:
		err = fmt.Errorf("virtual machine: %w: %s", err, errs.String())
	}
	return outcomes, string(raw), err
}

func (m Machine) writeRoot(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = m.Root.WriteTo(w)
	if err == nil {
		err = w.Flush()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// collect reads init's output until the machine ends.
func collect(r io.Reader, watch func(string)) (all []Outcome) {
	var output strings.Builder
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		line = strings.TrimRight(line, "\r\n") // the port's driver adds the \r
		last := len(all) - 1
		if name, ok := strings.CutPrefix(line, Began); ok {
			all = append(all, Outcome{Program: name, Code: "none"})
			output.Reset()
		} else if end, ok := strings.CutPrefix(line, Ended); ok && last >= 0 {
			_, all[last].Code, _ = strings.Cut(end, " ")
		} else if line != "" && last >= 0 {
			output.WriteString(line + "\n")
			all[last].Output = output.String()
			watch(line)
		}
		if err != nil {
			return all
		}
	}
}
