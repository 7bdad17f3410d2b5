// Package wireguard has this node's keys of WireGuard, and starts the program that takes the place
// of a kernel's WireGuard.
package wireguard

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/network/peer"
)

// Program is the program's name. It is installed beside huskd.
const Program = "husk-wireguard"

// Key returns the private key in a file, which it makes if there is none.
func Key(file string) (private, public peer.Key, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		text, err = newKey(file)
	}
	if err != nil {
		return private, public, fmt.Errorf("wireguard key: %w", err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
	if err != nil || key == (wgtypes.Key{}) {
		return private, public, fmt.Errorf("wireguard key: %s has no key of 32 bytes in base64: remove it, and huskd makes another", file)
	}
	return peer.Key(key), peer.Key(key.PublicKey()), nil
}

// newKey makes a key and writes it, so that a crash leaves the whole file or none.
func newKey(file string) ([]byte, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	tmp := file + ".new"
	text := []byte(key.String() + "\n")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	return text, os.Rename(tmp, file)
}

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
