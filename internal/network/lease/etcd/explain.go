package etcd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/huskd/husk/internal/network/lease/claim"
)

// observe keeps why calls fail: the client hides that behind "context deadline exceeded".
func (s *Store) observe(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoker(ctx, method, req, reply, cc, opts...)
	s.setCause(err)
	return err
}

func (s *Store) observeStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	s.setCause(err)
	return stream, err
}

func (s *Store) setCause(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause = err
}

// explain returns an error of one line that says what to do.
func (s *Store) explain(err error) error {
	taken := new(claim.TakenError)
	switch {
	case err == nil, errors.Is(err, claim.ErrConflict), errors.Is(err, claim.ErrLost), errors.Is(err, claim.ErrSettling), errors.As(err, &taken):
		return err
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return claim.ErrLost
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrAuthNotEnabled):
		return fmt.Errorf("authentication of user %q failed: check the user name and the password", s.cfg.Username)
	case errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return errors.New("it wants a user name and a password, or a certificate with a user's name")
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("user %q may not read and write the keys %s: grant it a role that may", s.cfg.Username, s.prefix)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return errors.New("its database has reached its quota: compact and defragment it, raise --quota-backend-bytes, and disarm the alarm")
	case errors.Is(err, context.DeadlineExceeded), status.Code(err).String() == "DeadlineExceeded":
		s.mu.Lock()
		cause := s.cause
		s.mu.Unlock()
		if text := oneLine(cause); text != "" {
			// Of TLS 1.3, a client without a certificate often sees only that the connection breaks.
			if s.tls != nil && s.cfg.Cert == "" && !strings.Contains(text, "certificate") {
				text += "; it may want a certificate of this node"
			}
			return fmt.Errorf("no answer in time: %s", text)
		}
		return errors.New("no answer in time: is a majority of its members running?")
	}
	return errors.New(oneLine(err))
}

// oneLine returns what is to be known of an error of gRPC, and "" if that is only that time was up.
func oneLine(err error) string {
	if err == nil {
		return ""
	}
	text := strings.Join(strings.Fields(status.Convert(err).Message()), " ")
	for _, noise := range []string{"context deadline exceeded", "context canceled", "rpc error: code = Unavailable desc = ", "connection error: desc = ", "latest balancer error: ", "transport: ", "while waiting for connections to become ready", "received context error"} {
		text = strings.ReplaceAll(text, noise, "")
	}
	return strings.Trim(connection.ReplaceAllString(text, "tcp $1"), " :,;\"")
}

// connection is how errors name a connection. The near end is different each time.
var connection = regexp.MustCompile(`tcp \S+->(\S+)`)
