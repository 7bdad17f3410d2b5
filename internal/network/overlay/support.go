package overlay

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// Supports returns nil if the links of a way can be made, or the kernel's reason. It asks it
// once, by making one in a network namespace of its own. That may load a module, and with ipip the
// kernel then adds a link tunl0 to all network namespaces.
func (o *Overlay) Supports(w backend.Way) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w == backend.WireGuard && o.startWireGuard != nil {
		return nil
	}
	return o.inKernel(w)
}

// inKernel returns nil if the kernel can make the links of a way, or its reason.
func (o *Overlay) inKernel(w backend.Way) error {
	if kinds[w] == "" {
		return nil // it has no link
	}
	err, asked := o.supported[w]
	if !asked {
		err = o.kernel.probe(w)
		o.supported[w] = err
	}
	return err
}

func (k *kernel) probe(w backend.Way) error {
	return netns.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("%s: new network namespace: %w", w, err)
		}
		c, err := nlsock.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
		defer c.Close()
		l := backend.Link{Way: w, Name: "probe", MTU: 1280, Local: netip.AddrFrom4([4]byte{127, 0, 0, 1}), VNI: 1, Port: plan.VXLANPort}
		l.MAC[0] = 2
		if err := c.Do(k.newLink(l, unix.NLM_F_CREATE|unix.NLM_F_EXCL))[0].Err; err != nil {
			return fmt.Errorf("the kernel has no %s: %w", kinds[w], err)
		}
		return nil
	})
}

// Unsummed returns the links whose offloading of checksums is off, by TxChecksum or by people.
func (o *Overlay) Unsummed() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.unsummed))
}

// TxChecksum switches the offloading of checksums of a link on or off, for network cards that get
// them wrong in encapsulated packets. It stays off if the link is made again.
func (o *Overlay) TxChecksum(link string, on bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if on {
		delete(o.unsummed, link)
	} else {
		o.unsummed[link] = true
	}
	return o.kernel.setTxChecksum(link, on)
}

func (k *kernel) setTxChecksum(link string, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	if _, err := k.ethtool(link, unix.ETHTOOL_STXCSUM, value); err != nil {
		return fmt.Errorf("link %s: set checksum offloading: %w", link, err)
	}
	return nil
}

// ethtool sends a command of one value, and returns the kernel's.
func (k *kernel) ethtool(link string, command, value uint32) (uint32, error) {
	data := struct{ command, value uint32 }{command, value} // struct ethtool_value
	var req struct {                                        // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], link)
	req.data = unsafe.Pointer(&data)
	err := k.inNode(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return errno
		}
		return nil
	})
	return data.value, err
}
