// Command answer tells everybody who asks, by TCP or UDP at the port that it is
// given, its host's name and the address that it was asked from.
package main

import (
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
)

func main() {
	name, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	datagrams, err := net.ListenPacket("udp", ":"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	connections, err := net.Listen("tcp", ":"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for buf := make([]byte, 100); ; {
			if _, from, err := datagrams.ReadFrom(buf); err == nil {
				_, _ = datagrams.WriteTo(answer(name, from), from)
			}
		}
	}()
	for {
		c, err := connections.Accept()
		if err != nil {
			log.Fatal(err)
		}
		_, _ = c.Write(answer(name, c.RemoteAddr()))
		_ = c.Close()
	}
}

func answer(name string, from net.Addr) []byte {
	return fmt.Appendf(nil, "%s %v", name, netip.MustParseAddrPort(from.String()).Addr().Unmap())
}
