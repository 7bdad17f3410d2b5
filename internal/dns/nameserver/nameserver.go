// Package nameserver serves DNS to the pods of a node without a cluster: it answers questions about
// services and pods from a zone, and has all others forwarded.
package nameserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/dns/forward"
	"github.com/huskd/husk/internal/dns/zone"
)

// Port is the port of DNS.
const Port = 53

// Config configures a Server.
type Config struct {
	// Address is where the server listens, by UDP and TCP. The node need not have that address yet.
	Address netip.AddrPort
	// Zone has the first answers.
	Zone *zone.Zone
	// Forward answers everything else.
	Forward *forward.Forwarder
	// Client returns who asks from an address: the name of a pod, which is the same for all of its
	// addresses, or another word; nothing if the server doesn't answer. It must not block.
	Client func(netip.Addr) string
	// Limited, unless nil, is called when a client begins to ask too much. It must not block.
	Limited func(client string)
	Log     *slog.Logger
}

// Server is a DNS server.
type Server struct {
	cfg     Config
	zone    atomic.Pointer[zone.Zone]
	failure atomic.Pointer[error] // why it doesn't listen
	// sockets are those that New has opened, until serve uses them.
	sockets sockets
	// clients counts the questions that are forwarded, connections the connections.
	clients, connections clients
	limiter              limiter
}

// sockets are where queries arrive.
type sockets struct {
	packets     net.PacketConn
	connections net.Listener
}

func (s sockets) close() { _, _ = s.packets.Close(), s.connections.Close() }

// New returns a server that listens, if it can. Run answers what has arrived. A server that is not
// run must be closed.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, limiter: limiter{of: map[string]*asking{}, log: cfg.Log, began: cfg.Limited}}
	s.zone.Store(cfg.Zone)
	var err error
	if s.sockets, err = s.listen(context.Background()); err != nil {
		s.failed(err)
	}
	return s
}

// Close closes the sockets of a server that was not run.
func (s *Server) Close() {
	if s.sockets.packets != nil {
		s.sockets.close()
	}
}

// failed notes why the server doesn't listen.
func (s *Server) failed(err error) {
	if before := s.failure.Swap(&err); before == nil || (*before).Error() != err.Error() {
		s.cfg.Log.Error("dns: pods get no answers; listening is tried again", "error", err)
	}
}

// SetZone replaces the zone.
func (s *Server) SetZone(z *zone.Zone) { s.zone.Store(z) }

// Err returns why the server doesn't listen, or nil.
func (s *Server) Err() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// listenTime is how often listening is tried again: another program may have the port.
const listenTime = 5 * time.Second

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) {
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		s.failed(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenTime):
		}
	}
}

const (
	idleTime  = 10 * time.Second
	writeTime = 5 * time.Second
	// querySize is the largest query that is read.
	querySize = 4096
	// bufferSize is that of what arrives, in bytes of the kernel's memory. It has room for what the
	// kernel lets several pods send at once, so that others' questions have it, too.
	bufferSize = 4 << 20
	// tcpQueries is how many queries a connection may bring.
	tcpQueries = 1000
)

// serve listens, and answers until ctx ends or a socket fails.
func (s *Server) serve(ctx context.Context) error {
	open := s.sockets
	s.sockets = sockets{}
	if open.packets == nil {
		var err error
		if open, err = s.listen(ctx); err != nil {
			return err
		}
	}
	s.failure.Store(nil)
	idle := func() time.Duration { return idleTime }
	servers := []*dns.Server{
		{PacketConn: open.packets, UDPSize: querySize},
		{Listener: limited{open.connections, s}, IdleTimeout: idle, ReadTimeout: idleTime, MaxTCPQueries: tcpQueries},
	}
	serving, ctx := errgroup.WithContext(ctx)
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) { s.respond(ctx, w, query) })
	for _, server := range servers {
		server.Handler, server.WriteTimeout = answer, writeTime
		server.DecorateReader = func(by dns.Reader) dns.Reader { return &reader{by, s} }
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		serving.Go(server.ActivateAndServe)
		select { // it can't be shut down before
		case <-started:
		case <-ctx.Done():
		}
	}
	serving.Go(func() error {
		s.limiter.run(ctx)
		return nil
	})
	serving.Go(func() error {
		<-ctx.Done()
		ended, cancel := context.WithTimeout(context.Background(), 0)
		defer cancel()
		for _, server := range servers {
			_ = server.ShutdownContext(ended)
		}
		open.close()
		return nil
	})
	return serving.Wait()
}

// listen opens the sockets. The address need not exist: the network makes it, and makes it again.
func (s *Server) listen(ctx context.Context) (sockets, error) {
	freebind := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		control := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) // also of IPv6 sockets
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize)
			}
		})
		return errors.Join(control, err)
	}}
	address := s.cfg.Address.String()
	packets, err := freebind.ListenPacket(ctx, "udp", address)
	if err != nil {
		return sockets{}, fmt.Errorf("listen: %w", err)
	}
	connections, err := freebind.Listen(ctx, "tcp", packets.LocalAddr().String())
	if err != nil {
		return sockets{}, errors.Join(fmt.Errorf("listen: %w", err), packets.Close())
	}
	return sockets{packets, connections}, nil
}

// respond answers a query.
func (s *Server) respond(ctx context.Context, w dns.ResponseWriter, query *dns.Msg) {
	_, udp := w.RemoteAddr().(*net.UDPAddr)
	client := s.client(w.RemoteAddr()) // the reader has admitted it
	reply := s.answer(ctx, client, query)
	if reply == nil {
		return
	}
	size := dns.MaxMsgSize
	if udp {
		size = dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = max(size, min(int(opt.UDPSize()), maxUDP))
		}
	}
	reply.Truncate(size)
	if err := w.WriteMsg(reply); err != nil {
		s.cfg.Log.Debug("dns: an answer was not sent", "to", client, "error", err)
	}
}

// maxUDP is the longest answer by UDP, in bytes. The link of a pod has no smaller MTU.
const maxUDP = 1232

// client returns who asks, or nothing if the server doesn't answer: a pod, or a program of the
// node's own network, which sends to a local address from the same one.
func (s *Server) client(at net.Addr) string {
	a := addressOf(at)
	if a == s.cfg.Address.Addr() {
		return nodeItself
	}
	return s.cfg.Client(a)
}

// nodeItself is the client of the programs of the node's own network.
const nodeItself = "the node"

func addressOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// answer returns the reply to a query, or nil if it gets none.
func (s *Server) answer(ctx context.Context, client string, query *dns.Msg) *dns.Msg {
	if query.Response {
		return nil
	}
	reply := new(dns.Msg).SetReply(query)
	reply.RecursionAvailable = true
	opt := query.IsEdns0()
	if opt != nil {
		reply.SetEdns0(maxUDP, opt.Do())
	}
	switch {
	case query.Opcode != dns.OpcodeQuery:
		reply.Rcode = dns.RcodeNotImplemented
	case len(query.Question) != 1:
		reply.Rcode = dns.RcodeFormatError
	case opt != nil && opt.Version() != 0:
		reply.Rcode = dns.RcodeBadVers
	case query.Question[0].Qclass != dns.ClassINET || transfers(query.Question[0].Qtype):
		reply.Rcode = dns.RcodeRefused
	default:
		s.resolve(ctx, client, query, reply)
	}
	return reply
}

// transfers reports whether a type stands for a whole zone.
func transfers(kind uint16) bool { return kind == dns.TypeAXFR || kind == dns.TypeIXFR }

// resolve answers a question from the zone or by others.
func (s *Server) resolve(ctx context.Context, client string, query, reply *dns.Msg) {
	question := forward.Question{Question: query.Question[0], Unchecked: query.CheckingDisabled}
	if opt := query.IsEdns0(); opt != nil {
		question.WantSignatures = opt.Do()
	}
	own, ok := s.zone.Load().Answer(question.Question)
	if ok {
		shuffle(own.Answer)
		reply.Authoritative = true
		reply.Rcode = own.Rcode
		reply.Answer, reply.Ns = own.Answer, own.Ns
		reply.Extra = append(own.Extra, reply.Extra...)
		if own.Alias == "" {
			return
		}
		question.Name = own.Alias
	}
	if !query.RecursionDesired {
		if !ok {
			reply.Rcode = dns.RcodeRefused
		}
		return
	}
	if !s.clients.begin(client) {
		reply.Rcode = dns.RcodeServerFailure
		return
	}
	defer s.clients.end(client)
	others := s.cfg.Forward.Resolve(ctx, question)
	reply.Rcode = others.Rcode
	reply.AuthenticatedData = others.AuthenticatedData && !ok
	reply.Answer = append(reply.Answer, others.Answer...)
	reply.Ns = others.Ns
	reply.Extra = append(others.Extra, reply.Extra...)
}

// shuffle mixes addresses, so that the clients that use the first one spread over all of them.
// Aliases stay before them.
func shuffle(records []dns.RR) {
	for len(records) > 0 && records[0].Header().Rrtype == dns.TypeCNAME {
		records = records[1:]
	}
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
}
