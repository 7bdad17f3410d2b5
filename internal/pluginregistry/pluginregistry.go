// Package pluginregistry finds the kubelet plugins that offer themselves by a socket in a
// directory, asks each what it is, and tells it whether it is used.
package pluginregistry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginregistrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// rescanTime is how often the directory is read without a change, retryTime how often while a
	// plugin hasn't answered: its socket is there before it listens.
	rescanTime = 10 * time.Second
	retryTime  = 500 * time.Millisecond
	askTime    = 5 * time.Second
)

// Handler uses the plugins of one type.
type Handler struct {
	// Add uses a plugin, or says why it can't be used. socket is where it serves.
	Add func(info *pluginregistrationv1.PluginInfo, socket string) error
	// Remove is called with the name of a plugin whose socket has gone.
	Remove func(name string)
}

// Registry watches a directory.
type Registry struct {
	Dir string
	// Handlers are those of the types that are used. Plugins of other types are told that they
	// aren't.
	Handlers map[string]Handler
	Log      *slog.Logger

	// Invariant: only Run uses the fields below. known are the plugins by their sockets.
	known map[string]plugin
	// silent are the sockets at which nothing answers, with the error that was logged.
	silent map[string]string
}

type plugin struct {
	socket     fs.FileInfo
	kind, name string // empty for a plugin that isn't used
}

// Run uses the plugins of the directory until ctx ends. Errors don't end it: it logs them.
func (r *Registry) Run(ctx context.Context) error {
	r.known, r.silent = map[string]plugin{}, map[string]string{}
	if err := os.MkdirAll(r.Dir, 0o750); err != nil {
		r.Log.Error("plugin registry: no plugin can register", "error", err)
		return nil
	}
	var changes <-chan fsnotify.Event
	watch, err := fsnotify.NewWatcher()
	if err == nil {
		defer watch.Close()
		err = watch.Add(r.Dir)
		changes = watch.Events
	}
	if err != nil {
		r.Log.Warn("plugin registry: plugins are noticed late", "directory", r.Dir, "error", err)
	}
	for ctx.Err() == nil {
		r.scan(ctx)
		pause := rescanTime
		if len(r.silent) > 0 {
			pause = retryTime
		}
		select {
		case <-ctx.Done():
		case <-changes:
		case <-time.After(pause):
		}
	}
	return nil
}

// scan compares the directory with the plugins that are known.
func (r *Registry) scan(ctx context.Context) {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		r.Log.Error("plugin registry: reading the directory failed", "error", err)
		return
	}
	present := map[string]fs.FileInfo{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().Type() == fs.ModeSocket && !strings.HasPrefix(e.Name(), ".") {
			present[filepath.Join(r.Dir, e.Name())] = info
		}
	}
	maps.DeleteFunc(r.known, func(path string, p plugin) bool {
		now, ok := present[path]
		gone := !ok || !os.SameFile(now, p.socket) || !now.ModTime().Equal(p.socket.ModTime())
		if gone && p.name != "" {
			r.Handlers[p.kind].Remove(p.name)
		}
		return gone
	})
	maps.DeleteFunc(r.silent, func(path, _ string) bool { return present[path] == nil })
	for path, socket := range present {
		if _, ok := r.known[path]; ok {
			continue
		}
		p, answered, err := r.register(ctx, path)
		if err != nil && ctx.Err() == nil && r.silent[path] != err.Error() {
			r.Log.Error("plugin registry: a plugin isn't used", "socket", path, "error", err)
		}
		delete(r.silent, path)
		if answered {
			p.socket = socket
			r.known[path] = p
		} else {
			r.silent[path] = err.Error()
		}
	}
}

// register asks a plugin what it is and tells it whether it is used. A plugin that hasn't answered
// is asked again.
func (r *Registry) register(ctx context.Context, path string) (p plugin, answered bool, err error) {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return p, false, err
	}
	defer conn.Close()
	client := pluginregistrationv1.NewRegistrationClient(conn)
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	info, err := client.GetInfo(ctx, &pluginregistrationv1.InfoRequest{})
	if err != nil {
		return p, false, err
	}
	status := &pluginregistrationv1.RegistrationStatus{PluginRegistered: true}
	if handler, ok := r.Handlers[info.GetType()]; !ok {
		err = fmt.Errorf("huskd doesn't use plugins of type %.40q, such as %.80q", info.GetType(), info.GetName())
	} else {
		socket := path
		if info.GetEndpoint() != "" {
			socket = info.GetEndpoint()
		}
		err = handler.Add(info, socket)
	}
	if err != nil {
		status = &pluginregistrationv1.RegistrationStatus{Error: err.Error()}
	} else {
		p = plugin{kind: info.GetType(), name: info.GetName()}
	}
	_, told := client.NotifyRegistrationStatus(ctx, status)
	return p, true, errors.Join(err, told)
}
