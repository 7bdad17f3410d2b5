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

	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
)

// Localhost stands for the loopback's addresses, of which one suffices.
const Localhost = "localhost"

// Forwarding has ports lead to a pod until its context ends or the pod is gone.
type Forwarding struct {
	Client    *client.Client
	Pod       string
	Ports     []Port
	Addresses []string // to listen at: Localhost, or IP addresses
	// Out gets a line for each port and each connection, Errs one for each
	// connection that failed.
	Out, Errs io.Writer

	writing sync.Mutex
}

func (f *Forwarding) print(to io.Writer, line string) {
	f.writing.Lock()
	defer f.writing.Unlock()
	_, _ = io.WriteString(to, render.OneLine(line)+"\n") // who doesn't listen isn't told
}

// door is a port that is listened at.
type door struct {
	net.Listener
	local  int
	remote int32
}

// Run listens, and returns once the pod is gone or ctx ends.
func (f *Forwarding) Run(ctx context.Context) error {
	ask := &huskv1.FindPortsRequest{Name: f.Pod}
	for _, p := range f.Ports {
		ask.Ports = append(ask.Ports, p.Remote)
	}
	found, err := f.Client.FindPorts(ctx, ask)
	if err != nil {
		return err
	}
	var doors []door
	defer func() {
		for _, d := range doors {
			_ = d.Close()
		}
	}()
	for i, p := range f.Ports {
		if p.SameLocal {
			p.Local = uint16(found.Ports[i])
		}
		opened, err := f.listen(p.Local, found.Ports[i])
		doors = append(doors, opened...)
		if err != nil {
			return err
		}
	}
	return f.serve(ctx, found, doors)
}

// listen opens a port at all addresses. Any free one is the same at all.
func (f *Forwarding) listen(local uint16, remote int32) (doors []door, err error) {
	for _, address := range f.Addresses {
		hosts := []string{address}
		if address == Localhost {
			hosts = []string{"127.0.0.1", "::1"}
		}
		var opened int
		var failures []error
		for _, host := range hosts {
			l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(local))))
			if err != nil {
				failures = append(failures, fmt.Errorf("can't listen: %w", err))
				continue
			}
			at := l.Addr().(*net.TCPAddr)
			local = uint16(at.Port)
			doors = append(doors, door{l, at.Port, remote})
			f.print(f.Out, fmt.Sprintf("Forwarding from %s -> %d", at, remote))
			opened++
		}
		if opened == 0 {
			return doors, errors.Join(failures...)
		}
	}
	return doors, nil
}

// CheckAddress says whether an address can be listened at.
func CheckAddress(address string) error {
	if address == Localhost {
		return nil
	}
	if _, err := netip.ParseAddr(address); err != nil {
		return fmt.Errorf("%q is not an IP address and not %s", address, Localhost)
	}
	return nil
}

// serve passes connections on.
func (f *Forwarding) serve(ctx context.Context, pod *huskv1.FindPortsResponse, doors []door) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	name := pod.Namespace + "/" + pod.Name
	var all sync.WaitGroup
	for _, d := range doors {
		all.Go(func() {
			for {
				conn, err := d.Accept()
				if err != nil {
					end(fmt.Errorf("can't listen any more: %w", err))
					return
				}
				f.print(f.Out, fmt.Sprintf("Handling connection for %d", d.local))
				all.Go(func() {
					err := f.pass(ctx, conn, &huskv1.ForwardStart{Uid: pod.Uid, Port: d.remote})
					switch refused, is := errors.AsType[client.Refused](err); {
					case err == nil || ctx.Err() != nil:
					case is && refused.Code != codes.NotFound && refused.Code != codes.FailedPrecondition:
						f.print(f.Errs, fmt.Sprintf("husk: port %d of pod %s: %v", d.remote, name, err))
					default: // the pod or huskd is gone
						end(fmt.Errorf("lost pod %s: %w", name, err))
					}
				})
			}
		})
	}
	<-ctx.Done()
	err := context.Cause(ctx)
	for _, d := range doors {
		_ = d.Close()
	}
	all.Wait()
	return err
}

// chunk is how much one message carries at most.
const chunk = 32 << 10

// pass holds one connection. Its client gets a reset if the pod's end can't be
// reached, as it would there.
func (f *Forwarding) pass(ctx context.Context, conn net.Conn, start *huskv1.ForwardStart) (err error) {
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
		return err // after io.EOF it is Recv that knows why
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
			return nil //nolint:nilerr // its client has left
		}
	}
}
