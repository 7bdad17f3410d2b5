// Package conflist keeps the CNI configuration by which other runtimes on the node find the network
// that huskd keeps.
package conflist

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/huskd/husk/internal/atomicfile"
)

// Name is the name of the file.
const Name = "10-husk.conflist"

// Text returns the configuration of a network. socket is the path of huskd's socket.
func Text(network, socket string) ([]byte, error) {
	type object = map[string]any
	text, err := json.MarshalIndent(object{
		// Runtimes whose libcni doesn't know cniVersions take cniVersion.
		"cniVersion":  "1.0.0",
		"cniVersions": []string{"1.0.0", current.ImplementedSpecVersion},
		"name":        network,
		"plugins": []object{{
			"type": "husk-cni", "network": "node", "daemon": socket, // see package plugin
			"capabilities": object{"portMappings": true, "bandwidth": true, "ips": true, "mac": true, "dns": true},
		}},
	}, "", "  ")
	return append(text, '\n'), err
}

// File is the file in a runtime's directory of configurations. Without it, the runtime has another
// network or none. So it is written when pods can be attached, and stays while they are.
type File struct {
	Path    string
	Content []byte
	// Ready returns why the file shouldn't be written yet.
	Ready func(context.Context) error
	Log   *slog.Logger
}

// The times between two looks at the file: before it is written, and after that.
const (
	soon  = 100 * time.Millisecond
	later = 10 * time.Second
)

// Keep writes the file once Ready returns nil, and restores it if it is changed, until ctx ends.
func (f File) Keep(ctx context.Context) error {
	logged := ""
	for {
		wait := later
		if err := f.write(ctx); err != nil {
			if err.Error() != logged {
				f.Log.Warn("other runtimes don't get the pod network yet", "file", f.Path, "error", err)
			}
			logged, wait = err.Error(), soon
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (f File) write(ctx context.Context) error {
	if is, err := os.ReadFile(f.Path); err == nil && bytes.Equal(is, f.Content) {
		return nil
	}
	if err := f.Ready(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	// Runtimes ignore the file that is renamed: it doesn't end with .conflist.
	if err := atomicfile.Write(f.Path, f.Content, 0o644); err != nil {
		return err
	}
	f.Log.Info("other runtimes get the pod network", "file", f.Path)
	return nil
}

// Remove removes the file.
func (f File) Remove() error {
	if err := os.Remove(f.Path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
