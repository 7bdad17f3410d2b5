// Package client connects to huskd. Its errors are single lines for people that say what to do,
// whether huskd refused a request or is not running.
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

// DefaultSocket is the address of huskd's socket by default.
const DefaultSocket = "unix:///run/husk/husk.sock"

// socketPathMax is the longest path that the kernel's sockaddr_un holds, see unix(7).
const socketPathMax = 107

// immediate are the calls that huskd answers from memory. The others take as long as the pods do.
var immediate = map[string]bool{
	huskv1.Husk_Version_FullMethodName:          true,
	huskv1.Husk_ListPods_FullMethodName:         true,
	huskv1.Husk_Inspect_FullMethodName:          true,
	huskv1.Husk_ListImages_FullMethodName:       true,
	huskv1.Husk_ListAttachments_FullMethodName:  true,
	huskv1.Husk_FindPorts_FullMethodName:        true,
	huskv1.Husk_Usage_FullMethodName:            true,
	huskv1.Volumes_ListVolumes_FullMethodName:   true,
	huskv1.Objects_ListObjects_FullMethodName:   true,
	huskv1.Services_ListServices_FullMethodName: true,
	huskv1.System_Info_FullMethodName:           true,
	huskv1.Manifests_Generate_FullMethodName:    true,
}

// connectTimeout is how long a listening huskd may take to complete the HTTP/2 handshake.
const connectTimeout = 15 * time.Second

// immediateTimeout bounds a call in immediate.
const immediateTimeout = 30 * time.Second

// answerMax bounds one message from huskd, such as the list of all pods.
const answerMax = 64 << 20

// Client is a connection to huskd.
type Client struct {
	huskv1.HuskClient
	huskv1.LifecycleClient
	huskv1.FilesClient
	huskv1.ImagesClient
	huskv1.DebuggingClient
	huskv1.VolumesClient
	huskv1.ObjectsClient
	huskv1.ServicesClient
	huskv1.SystemClient
	huskv1.StorageClient
	huskv1.ManifestsClient
	cc     *grpc.ClientConn
	socket string
	denied atomic.Bool // we may not open the socket
}

// New returns a client of the huskd that listens at socket: unix:///path, unix:path or a plain
// path. It connects with the first call. Its error is an AddressError.
func New(socket string) (*Client, error) { return newClient(socket, connectTimeout) }

func newClient(socket string, handshake time.Duration) (*Client, error) {
	path, err := socketPath(socket)
	if err != nil {
		return nil, err
	}
	c := &Client{socket: "unix://" + path}
	c.cc, err = grpc.NewClient("passthrough:///huskd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: handshake}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
			c.denied.Store(errors.Is(err, fs.ErrPermission))
			return conn, err
		}),
		grpc.WithStatsHandler(callTracker{}),
	)
	if err != nil {
		return nil, AddressError(err.Error())
	}
	conn := explainingConn{c}
	c.HuskClient, c.LifecycleClient = huskv1.NewHuskClient(conn), huskv1.NewLifecycleClient(conn)
	c.FilesClient, c.ImagesClient, c.DebuggingClient = huskv1.NewFilesClient(conn), huskv1.NewImagesClient(conn), huskv1.NewDebuggingClient(conn)
	c.VolumesClient, c.ObjectsClient, c.ServicesClient = huskv1.NewVolumesClient(conn), huskv1.NewObjectsClient(conn), huskv1.NewServicesClient(conn)
	c.SystemClient, c.StorageClient, c.ManifestsClient = huskv1.NewSystemClient(conn), huskv1.NewStorageClient(conn), huskv1.NewManifestsClient(conn)
	return c, nil
}

// Close closes the connection and ends the calls on it.
func (c *Client) Close() { _ = c.cc.Close() } // fails only if it is closed already

// AddressError is the error of an invalid socket address.
type AddressError string

func (e AddressError) Error() string { return string(e) }

// socketPath returns the path in the address s.
func socketPath(s string) (string, error) {
	path := s
	if scheme, rest, found := strings.Cut(s, ":"); found && !strings.Contains(scheme, "/") {
		if scheme != "unix" {
			return "", AddressError(fmt.Sprintf("invalid socket %q: huskd listens on a unix socket, such as %s", s, DefaultSocket))
		}
		path = strings.TrimPrefix(rest, "//")
	}
	switch {
	case path == "" || strings.ContainsRune(path, 0):
		return "", AddressError(fmt.Sprintf("invalid socket %q: give its path, as in %s", s, DefaultSocket))
	case len(path) > socketPathMax:
		return "", AddressError(fmt.Sprintf("the path of huskd's socket has %d bytes, more than the kernel's limit of %d: use a shorter one", len(path), socketPathMax))
	}
	return path, nil
}
