// Package file is a registry of nodes without a store: a TOML file with all nodes, which the
// administrator writes and which is the same on each of them. It is followed as it changes.
//
//	[[node]]
//	name = "n1"
//	addresses = ["192.0.2.1", "2001:db8::1"]
//	blocks = ["10.201.1.0/24", "fd68:7573:6b00:1::/64"]
//
// A file with a mistake is refused as a whole, and the last one without a mistake stays in force.
package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/huskd/husk/internal/filewatch"
	"github.com/huskd/husk/internal/network/peer"
)

const (
	// quiet is how long the file must be unchanged before it is read, because editors write in
	// several steps.
	quiet = 50 * time.Millisecond
	// resync is the interval at which the file is read without any event. It is needed on file
	// systems without inotify, and if the file is a link to a file elsewhere.
	resync = 5 * time.Second
	// maxFile is the maximum size of the file. A node takes about 150 bytes.
	maxFile = 4 << 20
)

// Registry follows a file of nodes. It implements peer.Registry.
type Registry struct {
	path, node string
	log        *slog.Logger
	announced  chan struct{} // next is set

	mu    sync.Mutex     // Invariant: guards the fields below.
	own   []netip.Prefix // the blocks of the node
	fault string         // why the file in its present state can't be used
	next  *peer.Node     // the latest record that Run hasn't seen

	// The rest belongs to Run.
	sum    [sha256.Size]byte
	nodes  []*peer.Node // nil before the file was read
	record peer.Node
}

var _ peer.Registry = (*Registry)(nil)

// New returns the registry of a node whose file is at path.
func New(path, node string, log *slog.Logger) *Registry {
	return &Registry{path: filepath.Clean(path), node: node, log: log, announced: make(chan struct{}, 1)}
}

// Run implements peer.Registry. It doesn't call update before the file is there and without a
// mistake; until then it logs what is wrong.
func (r *Registry) Run(ctx context.Context, update func(peer.View)) error {
	changes, err := filewatch.New(quiet)
	if err != nil {
		return fmt.Errorf("nodes file: watch %s: %w", r.path, err)
	}
	defer changes.Close()
	for ctx.Err() == nil {
		_ = changes.Add(filepath.Dir(r.path)) // if it is missing, read says so
		r.takeRecord()
		if r.read() && r.nodes != nil {
			update(r.view())
		}
		changes.Wait(ctx, resync, r.announced)
	}
	return nil
}

// Renamed returns an error if the file has a node's former name and not its present one. A file
// with a mistake has neither.
func (r *Registry) Renamed(former string) error {
	data, err := readFile(r.path)
	if err != nil {
		return nil //nolint:nilerr // Run says so, and goes on when it is there
	}
	nodes, err := parse(data)
	has := func(name string) bool {
		return slices.ContainsFunc(nodes, func(n *peer.Node) bool { return n.Name == name })
	}
	if err != nil || has(r.node) || !has(former) {
		return nil //nolint:nilerr // likewise
	}
	return fmt.Errorf("node %s was node %s before, and has pods with addresses of that node's blocks in %s: rename it there, on all nodes, or set node-name to %s", r.node, former, r.path, former)
}

// takeRecord takes the record that was last announced, and has the view made again.
func (r *Registry) takeRecord() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != nil {
		r.record, r.next = *r.next, nil
		r.sum = [sha256.Size]byte{}
	}
}

// read reads the file and reports whether the view may have changed.
func (r *Registry) read() bool {
	data, err := readFile(r.path)
	sum := sha256.Sum256(data)
	if err == nil && sum == r.sum {
		return r.setFault("")
	}
	var nodes []*peer.Node
	if err == nil {
		if nodes, err = parse(data); err != nil {
			err = fmt.Errorf("%s:%s", r.path, strings.ReplaceAll(err.Error(), "\n", "; "+r.path+":"))
		}
	}
	if err != nil {
		return r.setFault(err.Error())
	}
	r.setFault("")
	r.sum, r.nodes = sum, nodes
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = nil
	if i := r.index(); i >= 0 {
		r.own = nodes[i].Blocks
	}
	return true
}

// setFault notes why the file can't be used and reports whether that is new.
func (r *Registry) setFault(fault string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fault == r.fault {
		return false
	}
	r.fault = fault
	if fault != "" {
		r.log.Error("network: the file of nodes can't be used; the last good one stays in force", "error", fault)
	}
	return true
}

// index returns the index of the node's own entry, and -1 if it has none.
func (r *Registry) index() int {
	return slices.IndexFunc(r.nodes, func(n *peer.Node) bool { return n.Name == r.node })
}

func (r *Registry) view() peer.View {
	v := peer.View{Peers: slices.Clone(r.nodes)}
	if i := r.index(); i >= 0 {
		own := v.Peers[i]
		v.Blocks, v.Peers = slices.Clone(own.Blocks), slices.Delete(v.Peers, i, i+1)
		v.Addresses, v.Notes = slices.Clone(own.Addresses), r.differences(own, v.Peers)
		if len(own.Blocks) == 0 {
			v.Notes = append(v.Notes, fmt.Sprintf("node %s has no blocks in %s, so it starts no pods: add blocks", r.node, r.path))
		}
	} else {
		v.Notes = append(v.Notes, fmt.Sprintf("%s has no node %s, so this node starts no pods: add a [[node]] of this name", r.path, r.node))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != "" {
		v.Notes = append(v.Notes, r.fault+"; the last good version stays in force")
	}
	return v
}

// differences says what the file tells the other nodes about this one and isn't so.
func (r *Registry) differences(own *peer.Node, others []*peer.Node) (notes []string) {
	if r.record.Addresses == nil {
		return nil // nothing was announced
	}
	differs := func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf("node %s in %s: ", r.node, r.path)+fmt.Sprintf(format, args...))
	}
	for _, a := range own.Addresses {
		if !slices.Contains(r.record.Addresses, a) {
			differs("address %v, but this node has %v: change addresses", a, r.record.Addresses)
		}
	}
	if v := r.record.VXLAN; v != nil && *v != *own.VXLAN {
		differs("VXLAN's VNI, port and MAC are %d, %d and %v, but this node has %d, %d and %v: remove the table vxlan", own.VXLAN.VNI, own.VXLAN.Port, own.VXLAN.MAC, v.VNI, v.Port, v.MAC)
	}
	if own.IPIP && !r.record.IPIP {
		differs("ipip is true, but this node's kernel has no IPIP: remove ipip")
	}
	encrypts := func(n *peer.Node) bool { return len(n.WireGuard) > 0 }
	if w := r.record.WireGuard; len(w) > 0 && !slices.Equal(w, own.WireGuard) && (encrypts(own) || slices.ContainsFunc(others, encrypts)) {
		differs("it needs wireguard = [{key = %q, port = %d}]", w[len(w)-1].Key, w[len(w)-1].Port)
	}
	return notes
}

func readFile(path string) ([]byte, error) {
	// Without O_NONBLOCK, opening a FIFO would block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("nodes file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, fmt.Errorf("nodes file %s: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("nodes file %s: %w", path, err)
	}
	return data, nil
}

// Announce implements peer.Registry. The file stays as it is: where the record says something else
// than the node's entry, the view has a note.
func (r *Registry) Announce(record peer.Node) {
	r.mu.Lock()
	r.next = &record
	r.mu.Unlock()
	select {
	case r.announced <- struct{}{}:
	default:
	}
}

// May implements peer.Registry. Only the administrator can give a block to another node, so that a
// block of the file may be used as long as it is there. For the zero Prefix, it returns why the
// node has no block.
func (r *Registry) May(block netip.Prefix) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case slices.Contains(r.own, block):
		return nil
	case r.own == nil && r.fault != "":
		return errors.New(r.fault)
	case !block.IsValid():
		return fmt.Errorf("%s has no such blocks of node %s: add them", r.path, r.node)
	default:
		return fmt.Errorf("block %v isn't of node %s in %s", block, r.node, r.path)
	}
}

// Used implements peer.Registry. It does nothing: the blocks are the administrator's decision.
func (r *Registry) Used([]peer.Usage) {}
