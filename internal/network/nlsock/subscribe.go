package nlsock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// subscribeBuffer is how many bytes of announcements may wait to be read.
const subscribeBuffer = 8 << 20

// Subscribe opens a socket on which the kernel announces changes of the calling thread's network
// namespace. The groups are those of the protocol. A read fails with ENOBUFS if announcements were
// lost.
func Subscribe(protocol int, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	var mask uint32
	for _, g := range groups {
		mask |= 1 << (g - 1)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, subscribeBuffer),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: mask}))
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink: %w", errors.Join(err, unix.Close(fd)))
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// PortID returns the number by which announcements name the socket whose request they follow.
func (c *Conn) PortID() (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, err := unix.Getsockname(c.fd)
	if err != nil {
		return 0, fmt.Errorf("netlink socket: %w", err)
	}
	return name.(*unix.SockaddrNetlink).Pid, nil
}
