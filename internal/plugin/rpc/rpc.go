// Package rpc is how the program husk-cni asks huskd: one line of JSON each
// way over huskd's socket. The program would be twice as large, and twice as
// slow to start, with gRPC.
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

// Response is what becomes of it.
type Response struct {
	Stdout []byte       `json:"stdout,omitempty"`
	Error  *types.Error `json:"error,omitempty"`
}

// limit bounds a line: a configuration with the attachments of a node is some
// 10 KiB.
const limit = 4 << 20

// Call asks the daemon that serves the socket. If it is away, or goes away
// before it answers, the error is the specification's "try again".
func Call[A any](ctx context.Context, socket string, args A, stdin []byte) ([]byte, error) {
	away := func(err error) ([]byte, error) {
		return nil, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("huskd doesn't answer at %s: start it, or leave daemon out of the network configuration", socket), err.Error())
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return away(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(Request[A]{args, stdin}); err != nil {
		return away(err)
	}
	var r Response
	if err := json.NewDecoder(io.LimitReader(conn, limit)).Decode(&r); err != nil {
		return away(err)
	}
	if r.Error != nil {
		return nil, r.Error
	}
	return r.Stdout, nil
}

// Handler does a call.
type Handler[A any] func(ctx context.Context, args A, stdin []byte) ([]byte, error)

// patience is how long a caller may take to say what it wants.
const patience = 10 * time.Second

// Serve answers the one request of a connection and closes it. If the caller
// hangs up, the handler's context ends.
func Serve[A any](ctx context.Context, conn net.Conn, handle Handler[A]) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	reader := bufio.NewReader(io.LimitReader(conn, limit))
	var q Request[A]
	line, err := reader.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &q)
	}
	var r Response
	if err != nil {
		r.Error = types.NewError(types.ErrDecodingFailure, "huskd couldn't read what was asked", err.Error())
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
		_, _ = conn.Read(make([]byte, 1)) // nothing more comes: it ends when the caller does
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
