package daemon

import (
	"context"
	"net"

	"github.com/huskd/husk/internal/plugin"
	"github.com/huskd/husk/internal/plugin/rpc"
	"github.com/huskd/husk/internal/pod"
)

// debts returns the DELs that are owed. Of the built-in network only those that failed count: each
// deleted link waits a moment for others, to be deleted with them.
func (d *daemon) debts() (list []pod.Debt) {
	for _, a := range d.cni.Attachments() {
		if a.Owed() {
			list = append(list, pod.Debt{Attachment: a.Attachment, Network: a.Network, Since: a.Since, Tries: a.Tries, Error: a.Error})
		}
	}
	for _, debt := range d.network.Usage().Debts {
		if debt.Error != "" {
			list = append(list, debt)
		}
	}
	return list
}

// servePlugin serves connections of the program husk-cni, which uses the same socket as all other
// clients. A call that is still running when huskd stops is cut off, as by a crash: the next call
// completes it.
func (d *daemon) servePlugin(ctx context.Context) func(net.Conn) {
	p := &plugin.Plugin{Log: d.log}
	return func(conn net.Conn) { rpc.Serve(ctx, conn, p.Call) }
}
