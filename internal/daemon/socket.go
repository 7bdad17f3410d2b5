package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/dirmodes"
)

const scheme = "unix://"

// listen listens on the socket, which only root can use. It fails if another process serves the
// socket, and replaces a stale one.
func listen(address string) (net.Listener, error) {
	path := strings.TrimPrefix(address, scheme)
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("--listen: %s is in use: stop the process that serves it, or choose another socket", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("--listen: %s exists and is not a socket: remove it, or choose another path", path)
	} else if err == nil {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), dirmodes.Passable); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	// The umask is the whole process's, but no other goroutine creates files yet.
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("--listen: %s is too long for a socket: at most 107 characters", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return l, nil
}
