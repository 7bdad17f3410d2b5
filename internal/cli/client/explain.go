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

// call is what is known of one request beyond its error.
type call struct {
	answered atomic.Bool // anything came back at all
	ended    atomic.Bool // its status is huskd's own words
}

type callKey struct{}

// watcher notes in a call how far it got.
type watcher struct{}

func (watcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (watcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (watcher) HandleConn(context.Context, stats.ConnStats)                       {}

func (watcher) HandleRPC(ctx context.Context, s stats.RPCStats) {
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

// conn explains the errors of the connection below a client.
type conn struct{ c *Client }

func (n conn) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	if atOnce[method] {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTime)
		defer cancel()
	}
	k := &call{}
	return n.c.explain(ctx, k, n.c.cc.Invoke(context.WithValue(ctx, callKey{}, k), method, req, reply, opts...))
}

func (n conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	k := &call{}
	s, err := n.c.cc.NewStream(context.WithValue(ctx, callKey{}, k), desc, method, opts...)
	if err != nil {
		return nil, n.c.explain(ctx, k, err)
	}
	return &explained{s, ctx, n.c, k}, nil
}

// explained is a stream whose errors are made for people. io.EOF stays itself.
type explained struct {
	grpc.ClientStream
	// asked is the caller's context: the stream's own ends with the stream.
	asked context.Context
	c     *Client
	k     *call
}

func (s *explained) RecvMsg(m any) error {
	return s.c.explain(s.asked, s.k, s.ClientStream.RecvMsg(m))
}

func (s *explained) SendMsg(m any) error {
	return s.c.explain(s.asked, s.k, s.ClientStream.SendMsg(m))
}

// Refused is what huskd answered instead of doing what it was asked.
type Refused struct {
	Code    codes.Code
	message string
}

func (r Refused) Error() string { return r.message }

// explain makes an error of gRPC one line that says what to do. A context that
// ended for a cause of its own says that.
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
			return fmt.Errorf("no permission to use %s: root is needed, try sudo husk", c.socket)
		case k.answered.Load():
			return fmt.Errorf("lost huskd at %s in the middle of its answer: see whether it still runs", c.socket)
		}
		return fmt.Errorf("huskd doesn't answer at %s: is it running? start it with huskd, or name its socket with --socket", c.socket)
	case code == codes.DeadlineExceeded && !k.ended.Load():
		return Refused{code, fmt.Sprintf("huskd at %s took too long to answer", c.socket)}
	case code == codes.Unimplemented:
		return Refused{code, fmt.Sprintf("huskd at %s doesn't know this command: it is older than husk, see husk version", c.socket)}
	case s.Message() == "":
		return Refused{code, "huskd failed without a reason: " + code.String()}
	default:
		return Refused{code, s.Message()}
	}
}
