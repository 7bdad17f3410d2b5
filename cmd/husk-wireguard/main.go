// Command husk-wireguard is a WireGuard link for a kernel without WireGuard. huskd starts it, and
// it outlives huskd. It ends when its link is deleted.
//
// Usage: husk-wireguard LINK MTU. It is ready once the link is there, as internal/network/companion
// explains. The link is configured like one of the kernel's, but through
// /var/run/wireguard/LINK.sock (https://www.wireguard.com/xplatform/).
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/huskd/husk/internal/network/companion"
)

func main() {
	companion.Main("husk-wireguard LINK MTU", func(args []string, ready func()) error {
		mtu, err := strconv.Atoi(args[1])
		if err == nil {
			err = run(args[0], mtu, ready)
		}
		if err != nil {
			return fmt.Errorf("link %s: %w", args[0], err)
		}
		return nil
	})
}

func run(link string, mtu int, ready func()) error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	socket, err := ipc.UAPIOpen(link)
	if err != nil {
		return fmt.Errorf("open its socket: %w", err)
	}
	made, err := tun.CreateTUN(link, mtu)
	if err != nil {
		return err
	}
	wireGuard := device.NewDevice(made, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, "husk-wireguard: "+link+": "))
	defer wireGuard.Close()
	clients, err := ipc.UAPIListen(link, socket)
	if err != nil {
		return fmt.Errorf("listen on its socket: %w", err)
	}
	defer clients.Close()
	go serve(clients, wireGuard)
	ready()
	select {
	case <-end:
	case <-wireGuard.Wait(): // the link was deleted
	}
	return nil
}

func serve(clients net.Listener, wireGuard *device.Device) {
	for {
		client, err := clients.Accept()
		if err != nil {
			return
		}
		go wireGuard.IpcHandle(client)
	}
}
