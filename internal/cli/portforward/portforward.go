package portforward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
)

// Localhost stands for the loopback addresses, of which at least one must be available.
const Localhost = "localhost"

// Forwarding forwards ports to a pod until its context ends or the pod is gone.
type Forwarding struct {
	Client    *client.Client
	Pod       string
	Ports     []Port
	Addresses []string // to listen on: Localhost, or IP addresses
	// Out receives a line for each port and each connection, Errs one for each connection that
	// failed.
	Out, Errs io.Writer

	writing sync.Mutex // serializes lines
}

func (f *Forwarding) print(to io.Writer, line string) {
	f.writing.Lock()
	defer f.writing.Unlock()
	_, _ = io.WriteString(to, render.OneLine(line)+"\n") // the output may be closed
}

// listener is a local port that is forwarded.
type listener struct {
	net.Listener
	local  int
	remote int32
}

// Run forwards connections until the pod is gone or ctx ends.
func (f *Forwarding) Run(ctx context.Context) error {
	ask := &huskv1.FindPortsRequest{Name: f.Pod}
	for _, p := range f.Ports {
		ask.Ports = append(ask.Ports, p.Remote)
	}
	found, err := f.Client.FindPorts(ctx, ask)
	if err != nil {
		return err
	}
	var listeners []listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for i, p := range f.Ports {
		if p.SameLocal {
			p.Local = uint16(found.Ports[i])
		}
		opened, err := f.listen(p.Local, found.Ports[i])
		listeners = append(listeners, opened...)
		if err != nil {
			return err
		}
	}
	return f.serve(ctx, found, listeners)
}

// freePortTries is how often a free port is chosen that must be free on several addresses.
const freePortTries = 10

// listen listens on a port of all addresses. If local is 0, they share the same free port.
func (f *Forwarding) listen(local uint16, remote int32) ([]listener, error) {
	for try := 1; ; try++ {
		listeners, err := f.tryListen(local, remote)
		if err == nil {
			for _, l := range listeners {
				f.print(f.Out, fmt.Sprintf("Forwarding from %s -> %d", l.Addr(), remote))
			}
			return listeners, nil
		}
		for _, l := range listeners {
			_ = l.Close()
		}
		if local != 0 || !errors.Is(err, syscall.EADDRINUSE) || try == freePortTries {
			return nil, err
		}
	}
}

// tryListen returns the listeners that it opened, also with an error. Either address of Localhost
// may be missing on this machine, but neither may be another program's: clients of localhost would
// reach that program.
func (f *Forwarding) tryListen(local uint16, remote int32) (listeners []listener, err error) {
	for _, address := range f.Addresses {
		hosts := []string{address}
		if address == Localhost {
			hosts = []string{"127.0.0.1", "::1"}
		}
		opened := 0
		var failures []error
		for _, host := range hosts {
			l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(local))))
			switch {
			case errors.Is(err, syscall.EADDRINUSE):
				return listeners, fmt.Errorf("can't listen: %w: stop what listens there, or name another port, as in :%d", err, remote)
			case err != nil:
				failures = append(failures, fmt.Errorf("can't listen: %w", err))
				continue
			}
			local = uint16(l.Addr().(*net.TCPAddr).Port)
			listeners = append(listeners, listener{l, int(local), remote})
			opened++
		}
		if opened == 0 {
			return listeners, errors.Join(failures...)
		}
	}
	return listeners, nil
}

// CheckAddress returns an error if address can't be listened on.
func CheckAddress(address string) error {
	if address == Localhost {
		return nil
	}
	if _, err := netip.ParseAddr(address); err != nil {
		return fmt.Errorf("%q is neither an IP address nor %s", address, Localhost)
	}
	return nil
}

// serve accepts connections and forwards them.
func (f *Forwarding) serve(ctx context.Context, pod *huskv1.FindPortsResponse, listeners []listener) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	name := pod.Namespace + "/" + pod.Name
	var all sync.WaitGroup
	for _, l := range listeners {
		all.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					end(fmt.Errorf("can't accept connections: %w", err))
					return
				}
				f.print(f.Out, fmt.Sprintf("Handling connection for %d", l.local))
				all.Go(func() {
					err := f.forward(ctx, conn, &huskv1.ForwardStart{Uid: pod.Uid, Port: l.remote})
					switch refused, is := errors.AsType[client.Refused](err); {
					case err == nil || ctx.Err() != nil:
					case is && refused.Code != codes.NotFound && refused.Code != codes.FailedPrecondition:
						f.print(f.Errs, fmt.Sprintf("husk: port %d of pod %s: %v", l.remote, name, err))
					default: // the pod or huskd is gone
						end(fmt.Errorf("lost pod %s: %w", name, err))
					}
				})
			}
		})
	}
	<-ctx.Done()
	err := context.Cause(ctx)
	for _, l := range listeners {
		_ = l.Close()
	}
	all.Wait()
	return err
}

// chunk is how much data one message carries at most.
const chunk = 32 << 10

// forward forwards one connection. If the pod's port can't be reached, the client's connection is
// reset, as it would be there.
func (f *Forwarding) forward(ctx context.Context, conn net.Conn, start *huskv1.ForwardStart) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() {
		if tcp, ok := conn.(*net.TCPConn); ok && err != nil {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}()
	stream, err := f.Client.Forward(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&huskv1.ForwardInput{Of: &huskv1.ForwardInput_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return err // after io.EOF, Recv returns the reason
	}
	go func() {
		buf := make([]byte, chunk)
		for {
			n, err := conn.Read(buf)
			if n > 0 && stream.Send(&huskv1.ForwardInput{Of: &huskv1.ForwardInput_Data{Data: append([]byte(nil), buf[:n]...)}}) != nil {
				return
			}
			if err != nil {
				_ = stream.CloseSend()
				return
			}
		}
	}()
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if _, err := conn.Write(m.Data); err != nil {
			return nil //nolint:nilerr // the client closed the connection
		}
	}
}
