package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/huskd/husk/internal/oci"
)

// The library implements version 4 of the channel protocol. Current clients use only version 5, by
// which a client can close its stdin.
const channelProtocol = "v5.channel.k8s.io"

// The channels. The first byte of each message names one.
const (
	channelStdin = iota
	channelStdout
	channelStderr
	channelError
	channelResize
)

// serveChannels serves an exec or attach over a WebSocket.
func (r runtime) serveChannels(w http.ResponseWriter, req *http.Request, kind string, of session) {
	use := func(wanted bool, kind wsstream.ChannelType) wsstream.ChannelType {
		if wanted {
			return kind
		}
		return wsstream.IgnoreChannel
	}
	o := of.options
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{channelProtocol: {Binary: true, Channels: []wsstream.ChannelType{
		channelStdin:  use(o.Stdin, wsstream.ReadChannel),
		channelStdout: use(o.Stdout, wsstream.WriteChannel),
		channelStderr: use(o.Stderr, wsstream.WriteChannel),
		channelError:  wsstream.WriteChannel,
		channelResize: wsstream.ReadChannel,
	}}})
	conn.SetIdleTimeout(idleTimeout)
	_, channels, err := conn.Open(w, req)
	if err != nil {
		r.Log.Debug("stream: the WebSocket handshake failed", "error", err)
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	streams := oci.Streams{TTY: o.TTY, Resize: readSizes(ctx, channels[channelResize])}
	if o.Stdin {
		streams.Stdin = channels[channelStdin]
	}
	if o.Stdout {
		streams.Stdout = channels[channelStdout]
	}
	if o.Stderr {
		streams.Stderr = channels[channelStderr]
	}
	if kind == Exec {
		err = r.exec(ctx, oci.Exec{ID: of.id, Args: of.args, Streams: streams})
	} else {
		err = r.Containers.Attach(ctx, of.id, streams)
	}
	_, _ = channels[channelError].Write(status(err)) // the client may be gone
}

// status returns how a session ended, as a metav1.Status.
func status(err error) []byte {
	type cause struct {
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	type details struct {
		Causes []cause `json:"causes"`
	}
	s := struct {
		Status  string   `json:"status"`
		Message string   `json:"message,omitempty"`
		Reason  string   `json:"reason,omitempty"`
		Details *details `json:"details,omitempty"`
		Code    int      `json:"code,omitempty"`
	}{Status: "Success"}
	exit := exitError{}
	switch {
	case errors.As(err, &exit):
		s.Status, s.Reason = "Failure", "NonZeroExitCode"
		s.Message = fmt.Sprintf("command terminated with non-zero exit code: %v", exit)
		s.Details = &details{[]cause{{"ExitCode", fmt.Sprint(exit.code)}}}
	case err != nil:
		s.Status, s.Reason, s.Code = "Failure", "InternalError", http.StatusInternalServerError
		s.Message = err.Error()
	}
	text, _ := json.Marshal(s) // these fields can always be marshaled
	return text
}

// readSizes decodes the terminal sizes that a client sends until ctx ends.
func readSizes(ctx context.Context, from io.Reader) <-chan oci.Size {
	to := make(chan oci.Size)
	go func() {
		for in := json.NewDecoder(from); ; {
			var size oci.Size
			if in.Decode(&size) != nil {
				return
			}
			select {
			case to <- size:
			case <-ctx.Done():
				return
			}
		}
	}()
	return to
}

// tunnelPrefix precedes the name of a protocol whose SPDY connection is tunneled through a
// WebSocket.
const tunnelPrefix = "SPDY/3.1+"

// serveTunnel passes the connection that is tunneled through a WebSocket on to serve, as if the
// client had upgraded to SPDY itself.
func serveTunnel(w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter, *http.Request)) {
	protocol := ""
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			for _, offered := range c.Protocol {
				if name, ok := strings.CutPrefix(offered, tunnelPrefix); ok {
					protocol, c.Protocol = name, []string{offered}
					return nil
				}
			}
			return websocket.ErrBadWebSocketProtocol
		},
		Handler: func(conn *websocket.Conn) {
			conn.PayloadType = websocket.BinaryFrame
			inner := r.Clone(r.Context())
			inner.Header = http.Header{}
			inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
			inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
			inner.Header.Set(httpstream.HeaderProtocolVersion, protocol)
			serve(&tunneled{conn: conn, header: http.Header{}}, inner)
		},
	}.ServeHTTP(w, r)
}

// tunneled is the response of a connection that is upgraded already. It discards the response to
// the upgrade.
type tunneled struct {
	conn   net.Conn
	header http.Header
}

func (t *tunneled) Header() http.Header         { return t.header }
func (t *tunneled) WriteHeader(int)             {}
func (t *tunneled) Write(p []byte) (int, error) { return len(p), nil }

// Hijack returns the connection.
func (t *tunneled) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.conn, bufio.NewReadWriter(bufio.NewReader(t.conn), bufio.NewWriter(t.conn)), nil
}
