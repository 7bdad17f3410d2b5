// Package client connects to huskd. What fails, whether huskd refused it or
// doesn't answer at all, becomes one line for people that says what to do.
package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	huskv1 "github.com/huskd/husk/api/v1"
)

// DefaultSocket is where huskd listens unless told otherwise.
const DefaultSocket = "unix:///run/husk/husk.sock"

// socketPathMax is what the kernel's sockaddr_un holds, see unix(7).
const socketPathMax = 107

// atOnce are the calls that huskd answers from what it knows. The others take
// as long as the pods do.
var atOnce = map[string]bool{
	huskv1.Husk_Version_FullMethodName:         true,
	huskv1.Husk_ListPods_FullMethodName:        true,
	huskv1.Husk_Inspect_FullMethodName:         true,
	huskv1.Husk_ListImages_FullMethodName:      true,
	huskv1.Husk_ListAttachments_FullMethodName: true,
	huskv1.Husk_FindPorts_FullMethodName:       true,
	huskv1.Husk_Usage_FullMethodName:           true,
}

// connectTime is how long a huskd that is there may take to greet.
const connectTime = 15 * time.Second

// answerTime is the longest that a call of atOnce may take.
const answerTime = 30 * time.Second

// answerMax bounds one message of huskd, such as the list of all pods.
const answerMax = 64 << 20

// Client is a connection to huskd.
type Client struct {
	huskv1.HuskClient
	cc     *grpc.ClientConn
	socket string
	denied atomic.Bool // the socket is there, but not for us
}

// New returns a client of the huskd that listens at socket: unix:///path,
// unix:path or the path alone. It connects with the first call. An error is an
// AddressError.
func New(socket string) (*Client, error) {
	path, err := socketPath(socket)
	if err != nil {
		return nil, err
	}
	c := &Client{socket: "unix://" + path}
	c.cc, err = grpc.NewClient("passthrough:///huskd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTime}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
			c.denied.Store(errors.Is(err, fs.ErrPermission))
			return conn, err
		}),
		grpc.WithStatsHandler(watcher{}),
	)
	if err != nil {
		return nil, AddressError(err.Error())
	}
	c.HuskClient = huskv1.NewHuskClient(conn{c})
	return c, nil
}

// Close ends what goes on over the connection.
func (c *Client) Close() { _ = c.cc.Close() } // fails only if closed before

// AddressError says why an address can't be huskd's.
type AddressError string

func (e AddressError) Error() string { return string(e) }

// socketPath returns the path of the socket that s names.
func socketPath(s string) (string, error) {
	path := s
	if scheme, rest, found := strings.Cut(s, ":"); found && !strings.Contains(scheme, "/") {
		if scheme != "unix" {
			return "", AddressError(fmt.Sprintf("huskd's socket can't be %q: only a unix socket can, as in %s", s, DefaultSocket))
		}
		path = strings.TrimPrefix(rest, "//")
	}
	switch {
	case path == "" || strings.ContainsRune(path, 0):
		return "", AddressError(fmt.Sprintf("huskd's socket can't be %q: give its path, as in %s", s, DefaultSocket))
	case len(path) > socketPathMax:
		return "", AddressError(fmt.Sprintf("the path of huskd's socket has %d bytes, more than the kernel's %d: use a shorter one", len(path), socketPathMax))
	}
	return path, nil
}
