package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// call tracks how far one request got, which its error doesn't show.
type call struct {
	answered atomic.Bool // huskd sent headers
	ended    atomic.Bool // the status came from huskd, not from gRPC on this side
}

type callKey struct{}

// callTracker is a stats.Handler that records the progress of a request in the call of its context.
type callTracker struct{}

func (callTracker) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (callTracker) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (callTracker) HandleConn(context.Context, stats.ConnStats)                       {}

func (callTracker) HandleRPC(ctx context.Context, s stats.RPCStats) {
	k, _ := ctx.Value(callKey{}).(*call)
	if k == nil {
		return
	}
	switch s.(type) {
	case *stats.InHeader:
		k.answered.Store(true)
	case *stats.InTrailer:
		k.ended.Store(true)
	}
}

// explainingConn turns the errors of a connection into ones for people.
type explainingConn struct{ c *Client }

func (n explainingConn) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	if immediate[method] {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, immediateTimeout)
		defer cancel()
	}
	k := &call{}
	return n.c.explain(ctx, k, n.c.cc.Invoke(context.WithValue(ctx, callKey{}, k), method, req, reply, opts...))
}

func (n explainingConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	k := &call{}
	s, err := n.c.cc.NewStream(context.WithValue(ctx, callKey{}, k), desc, method, opts...)
	if err != nil {
		return nil, n.c.explain(ctx, k, err)
	}
	return &explained{s, ctx, n.c, k}, nil
}

// explained is a stream with errors for people. io.EOF stays as it is.
type explained struct {
	grpc.ClientStream
	// ctx is the caller's context. The stream's own is canceled when the stream ends.
	ctx context.Context
	c   *Client
	k   *call
}

func (s *explained) RecvMsg(m any) error {
	return s.c.explain(s.ctx, s.k, s.ClientStream.RecvMsg(m))
}

func (s *explained) SendMsg(m any) error {
	return s.c.explain(s.ctx, s.k, s.ClientStream.SendMsg(m))
}

// Refused is an error that huskd returned for a request.
type Refused struct {
	Code    codes.Code
	message string
}

func (r Refused) Error() string { return r.message }

// explain turns an error of gRPC into one line that says what to do. If ctx was canceled with a
// cause, that cause is the error.
func (c *Client) explain(ctx context.Context, k *call, err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err // io.EOF
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	switch code := s.Code(); {
	case code == codes.Unavailable && !k.ended.Load():
		switch {
		case c.denied.Load():
			return fmt.Errorf("no permission to use %s: try sudo husk", c.socket)
		case k.answered.Load():
			return fmt.Errorf("lost huskd at %s in the middle of its answer: check whether it is still running", c.socket)
		}
		return fmt.Errorf("huskd doesn't answer at %s: is it running? start it with huskd, or name its socket with --socket", c.socket)
	case code == codes.DeadlineExceeded && !k.ended.Load():
		return Refused{code, fmt.Sprintf("huskd at %s took too long to answer", c.socket)}
	case code == codes.Unimplemented:
		return Refused{code, fmt.Sprintf("huskd at %s doesn't know this command: it is older than husk, see husk version", c.socket)}
	case s.Message() == "":
		return Refused{code, "huskd failed without a message: " + code.String()}
	default:
		return Refused{code, s.Message()}
	}
}
