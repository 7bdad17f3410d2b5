// Package rpc is the protocol between husk-cni and huskd: one line of JSON in each direction over
// huskd's socket. With gRPC, the program would be twice as large and take twice as long to start.
package rpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// Request is one call of the plugin.
type Request[A any] struct {
	Args  A      `json:"args"`
	Stdin []byte `json:"stdin"`
}

// Response is the result of a Request.
type Response struct {
	Stdout []byte       `json:"stdout,omitempty"`
	Error  *types.Error `json:"error,omitempty"`
}

// limit is the maximum length of a line. A configuration with all attachments of a node has some 10
// KiB.
const limit = 4 << 20

// Call sends a call to the daemon at the socket. If the daemon doesn't run, or stops before it
// answers, the error is the specification's "try again later".
func Call[A any](ctx context.Context, socket string, args A, stdin []byte) ([]byte, error) {
	unavailable := func(err error) ([]byte, error) {
		return nil, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("huskd doesn't answer at %s: start it, or leave daemon out of the network configuration", socket), err.Error())
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return unavailable(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(Request[A]{args, stdin}); err != nil {
		return unavailable(err)
	}
	var r Response
	if err := json.NewDecoder(io.LimitReader(conn, limit)).Decode(&r); err != nil {
		return unavailable(err)
	}
	if r.Error != nil {
		return nil, r.Error
	}
	return r.Stdout, nil
}

// Handler handles a call.
type Handler[A any] func(ctx context.Context, args A, stdin []byte) ([]byte, error)

// requestTimeout is how long a caller may take to send its request.
const requestTimeout = 10 * time.Second

// Serve answers the single request of a connection and closes it. If the caller hangs up, the
// handler's context is cancelled.
func Serve[A any](ctx context.Context, conn net.Conn, handle Handler[A]) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	reader := bufio.NewReader(io.LimitReader(conn, limit))
	var q Request[A]
	line, err := reader.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &q)
	}
	var r Response
	if err != nil {
		r.Error = types.NewError(types.ErrDecodingFailure, "huskd can't parse the request", err.Error())
	} else {
		r = answer(ctx, conn, q, handle)
	}
	_ = json.NewEncoder(conn).Encode(r)
}

func answer[A any](ctx context.Context, conn net.Conn, q Request[A], handle Handler[A]) Response {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_ = conn.SetReadDeadline(time.Time{})
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // returns when the caller hangs up
		cancel()
	}()
	out, err := handle(ctx, q.Args, q.Stdin)
	if err == nil {
		return Response{Stdout: out}
	}
	var known *types.Error
	if !errors.As(err, &known) {
		known = types.NewError(types.ErrInternal, err.Error(), "")
	}
	return Response{Error: known}
}
