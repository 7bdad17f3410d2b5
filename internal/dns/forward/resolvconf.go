package forward

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/filewatch"
)

// Files are the files that name the node's resolvers.
type Files struct {
	// Main is a resolv.conf(5).
	Main string
	// BehindStub is read instead if Main names the stub of systemd-resolved, which serves only
	// programs in the node's own network.
	BehindStub string
}

// NodeFiles are the files where they usually are.
var NodeFiles = Files{Main: "/etc/resolv.conf", BehindStub: "/run/systemd/resolve/resolv.conf"}

// stub is the address of systemd-resolved's stub, see systemd-resolved.service(8).
var stub = netip.MustParseAddr("127.0.0.53")

// Read returns the configuration of the node's resolvers.
func (f Files) Read() ([]byte, error) {
	content, err := os.ReadFile(f.Main)
	if err != nil {
		return nil, err
	}
	if slices.Contains(resolversOf(content), stub) {
		if behind, err := os.ReadFile(f.BehindStub); err == nil {
			return behind, nil
		}
	}
	return content, nil
}

// Resolvers returns the node's resolvers, also the stub of systemd-resolved.
func (f Files) Resolvers() (out []netip.Addr) {
	for _, path := range []string{f.Main, f.BehindStub} {
		if content, err := os.ReadFile(path); err == nil {
			out = append(out, resolversOf(content)...)
		}
	}
	return out
}

// resolversOf returns the resolvers that a resolv.conf(5) names.
func resolversOf(content []byte) (out []netip.Addr) {
	for line := range strings.Lines(string(content)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

const (
	quietTime = 100 * time.Millisecond
	// readTime is how often the files are read although no change was noticed, as none is of a file
	// that is itself a mount.
	readTime = 10 * time.Second
	port     = 53
)

// Follow keeps the resolvers as the files say until ctx ends, except for own, the address of the
// server that forwards. While a file can't be read, the resolvers stay.
func (f *Forwarder) Follow(ctx context.Context, files Files, own netip.Addr) {
	watch, err := filewatch.New(quietTime)
	if err != nil {
		f.log.Warn("dns: changes of the node's resolvers are noticed late", "error", err)
	}
	defer watch.Close()
	for ctx.Err() == nil {
		for _, path := range []string{files.Main, files.BehindStub} {
			_ = watch.Add(filepath.Dir(path))
			if target, err := filepath.EvalSymlinks(path); err == nil {
				_ = watch.Add(filepath.Dir(target))
			}
		}
		f.read(files, own)
		watch.Wait(ctx, readTime, nil)
	}
}

// read sets the resolvers that the files name.
func (f *Forwarder) read(files Files, own netip.Addr) {
	content, err := files.Read()
	if err != nil {
		f.log.Debug("dns: reading the node's resolvers failed", "error", err)
		return
	}
	var list []netip.AddrPort
	for _, a := range resolversOf(content) {
		if a.Unmap().WithZone("") != own {
			list = append(list, netip.AddrPortFrom(a, port))
		}
	}
	if !slices.Equal(list, f.Resolvers()) {
		f.log.Info("dns: the resolvers of other names", "resolvers", list)
		f.SetResolvers(list)
	}
}
