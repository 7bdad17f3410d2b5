package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// socketName is where plugins register: see pluginapi.KubeletSocket.
	socketName = "kubelet.sock"
	maxMessage = 16 << 20
)

// Serve serves the registration of plugins until ctx ends. Errors don't end huskd: it logs them and
// runs on without device plugins.
func (m *Manager) Serve(ctx context.Context) error {
	socket, err := m.listen()
	if err != nil {
		m.cfg.Log.Error("device plugins: none can register", "directory", m.cfg.Dir, "error", err)
		return nil
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, registration{m: m})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(socket)
}

// listen makes the directory and the socket. Plugins notice that huskd was restarted, and register
// again, when the socket is made again or their own is removed.
func (m *Manager) listen() (net.Listener, error) {
	if err := os.MkdirAll(m.cfg.Dir, 0o750); err != nil {
		return nil, err
	}
	path := filepath.Join(m.cfg.Dir, socketName)
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("a kubelet serves %s: stop it, or choose another --kubelet-dir", path)
	}
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type() == fs.ModeSocket {
			err = errors.Join(err, os.Remove(filepath.Join(m.cfg.Dir, e.Name())))
		}
	}
	if err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// registration is the service at which plugins register.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	m *Manager
}

// Register implements pluginapi.RegistrationServer.
func (r registration) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	var err error
	switch endpoint := request.GetEndpoint(); {
	case !slices.Contains(pluginapi.SupportedVersions[:], request.GetVersion()):
		err = fmt.Errorf("version %.40q of the API is not supported: use %s", request.GetVersion(), pluginapi.Version)
	case endpoint != filepath.Base(endpoint) || endpoint == socketName || endpoint == "." || endpoint == "..":
		err = fmt.Errorf("endpoint %.80q is not the name of a socket in %s", endpoint, r.m.cfg.Dir)
	default:
		options := request.GetOptions()
		if options == nil {
			options = &pluginapi.DevicePluginOptions{}
		}
		err = r.m.Connect(request.GetResourceName(), filepath.Join(r.m.cfg.Dir, endpoint), options)
	}
	if err != nil {
		r.m.cfg.Log.Error("device plugins: a plugin is refused", "resource", request.GetResourceName(), "error", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &pluginapi.Empty{}, nil
}
