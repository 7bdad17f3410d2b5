// Command husk-wireguard is a WireGuard link for a kernel without WireGuard. huskd starts it, and
// it outlives huskd. It ends when its link is deleted.
//
// Usage: husk-wireguard LINK MTU. It writes a line to its standard output: "ok" once the link is
// there, and otherwise what failed. The link is configured like one of the kernel's, but through
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
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "husk-wireguard: usage: husk-wireguard LINK MTU; huskd starts it")
		os.Exit(2)
	}
	mtu, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = run(os.Args[1], mtu)
	}
	if err != nil {
		fmt.Printf("link %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func run(link string, mtu int) error {
	// A terminal or a service that ends must not end the link.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT)
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
	fmt.Println("ok")
	_ = os.Stdout.Close()
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
