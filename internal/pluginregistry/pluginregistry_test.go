package pluginregistry

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	pluginregistrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// offered is a plugin that serves its registration.
type offered struct {
	pluginregistrationv1.UnimplementedRegistrationServer
	info *pluginregistrationv1.PluginInfo
	told chan *pluginregistrationv1.RegistrationStatus
}

func (o *offered) GetInfo(context.Context, *pluginregistrationv1.InfoRequest) (*pluginregistrationv1.PluginInfo, error) {
	return o.info, nil
}

func (o *offered) NotifyRegistrationStatus(_ context.Context, status *pluginregistrationv1.RegistrationStatus) (*pluginregistrationv1.RegistrationStatusResponse, error) {
	o.told <- status
	return &pluginregistrationv1.RegistrationStatusResponse{}, nil
}

// offer serves a plugin in the directory. The returned function ends it, and its socket goes.
func offer(t *testing.T, dir string, info *pluginregistrationv1.PluginInfo) (o *offered, end func()) {
	t.Helper()
	o = &offered{info: info, told: make(chan *pluginregistrationv1.RegistrationStatus, 10)}
	socket, err := net.Listen("unix", filepath.Join(dir, info.GetName()+"-reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginregistrationv1.RegisterRegistrationServer(server, o)
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(server.Stop)
	return o, server.Stop
}

func await[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("timeout")
	}
	return v
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	early, _ := offer(t, dir, &pluginregistrationv1.PluginInfo{Type: "Known", Name: "early"})
	added, removed := make(chan string, 10), make(chan string, 10)
	r := &Registry{Dir: dir, Log: slog.New(slog.DiscardHandler), Handlers: map[string]Handler{"Known": {
		Add: func(info *pluginregistrationv1.PluginInfo, socket string) error {
			if info.GetName() == "bad" {
				return errors.New("too old")
			}
			added <- info.GetName() + " " + filepath.Base(socket)
			return nil
		},
		Remove: func(name string) { removed <- name },
	}}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if got := await(t, added); got != "early early-reg.sock" {
		t.Error(got)
	}
	if got := await(t, early.told); !got.GetPluginRegistered() {
		t.Error(got)
	}
	late, end := offer(t, dir, &pluginregistrationv1.PluginInfo{Type: "Known", Name: "late", Endpoint: "/run/late.sock"})
	if got := await(t, added); got != "late late.sock" {
		t.Error(got)
	}
	await(t, late.told)
	end()
	if got := await(t, removed); got != "late" {
		t.Error(got)
	}
	for name, want := range map[string]string{"csi": `huskd doesn't use plugins of type "CSIPlugin", such as "csi"`, "bad": "too old"} {
		info := &pluginregistrationv1.PluginInfo{Type: map[string]string{"csi": "CSIPlugin", "bad": "Known"}[name], Name: name}
		o, _ := offer(t, dir, info)
		if got := await(t, o.told); got.GetPluginRegistered() || got.GetError() != want {
			t.Errorf("%s was told %v", name, got)
		}
	}
	if len(added)+len(removed)+len(early.told) > 0 {
		t.Error("a plugin was registered twice")
	}
}
