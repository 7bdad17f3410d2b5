package netns

import (
	"errors"

	"golang.org/x/sys/unix"
)

// loopbackUp sets lo of the calling thread's network namespace up. One ioctl suffices: the kernel
// then adds 127.0.0.1/8 and ::1/128 itself.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_LOOPBACK | unix.IFF_RUNNING)
	return errors.Join(unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req))
}
