package monitor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/stdio"
	"github.com/huskd/husk/internal/poll"
)

// consoleFile is the name of the socket on which the runtime sends the terminal. The runtime gets
// only the name, relative to its working directory, because the whole path may be too long for a
// socket.
const consoleFile = "console"

type consoleSocket struct{ *net.UnixListener }

func (c *consoleSocket) close() { _ = c.UnixListener.Close() }

func listenConsole(dir string) (*consoleSocket, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	name := filepath.Join(fmt.Sprintf("/proc/self/fd/%d", d.Fd()), consoleFile)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path is invalid by then; the directory is removed later
	return &consoleSocket{l}, nil
}

// terminal receives the terminal, which the runtime has already sent.
func (c *consoleSocket) terminal() (*os.File, error) {
	deadline := time.Now().Add(stdio.StallLimit)
	_ = c.SetDeadline(deadline)
	conn, err := c.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("the runtime sent no terminal: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 4096), control)
	if err != nil {
		return nil, fmt.Errorf("receive the terminal: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) == 0 {
		return nil, fmt.Errorf("receive the terminal: no file in the message (%v)", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, fmt.Errorf("receive the terminal: %w", err)
	}
	unix.CloseOnExec(fds[0])
	return poll.New(fds[0], "terminal")
}

// resize sets the size of the terminal.
func resize(terminal *os.File, size oci.Size) {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
	})
}
