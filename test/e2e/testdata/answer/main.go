// Command answer replies to every TCP connection and UDP datagram on the port in its argument with
// the host's name and the client's IP address.
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

// answer returns the reply to from.
func answer(name string, from net.Addr) []byte {
	return fmt.Appendf(nil, "%s %v", name, netip.MustParseAddrPort(from.String()).Addr().Unmap())
}
