package e2e

import (
	"context"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	"github.com/huskd/husk/test/node"
)

// nriPlugin is a plugin of the Node Resource Interface that records its events. It answers with its
// functions, if they are set.
type nriPlugin struct {
	stub   stub.Stub
	conn   net.Conn
	closed chan struct{}

	mu         sync.Mutex
	events     []string // "event name", in order
	pods       []*api.PodSandbox
	containers []*api.Container // like pods, as of its registration
	last       *api.Container   // of the last event

	evict atomic.Pointer[string] // ID of a container to evict with the next message

	run    func(*api.PodSandbox) error
	create func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error)
	update func(*api.Container, *api.LinuxResources) []*api.ContainerUpdate
	start  func(*api.Container) error
	stop   func(*api.Container) []*api.ContainerUpdate
}

// noLogger is a logger for stubs that discards everything.
type noLogger struct{}

func (noLogger) Debugf(context.Context, string, ...any) {}
func (noLogger) Infof(context.Context, string, ...any)  {}
func (noLogger) Warnf(context.Context, string, ...any)  {}
func (noLogger) Errorf(context.Context, string, ...any) {}

// register connects p to the huskd of a node, until the end of the test.
func (p *nriPlugin) register(t testing.TB, n *node.Node, index string) *nriPlugin {
	t.Helper()
	var err error
	if p.conn, err = net.Dial("unix", n.Path("/run/nri/nri.sock")); err != nil {
		t.Fatal(err)
	}
	p.closed = make(chan struct{})
	p.stub, err = stub.New(p, stub.WithPluginName("test"), stub.WithPluginIdx(index), stub.WithConnection(p.conn), stub.WithLogger(noLogger{}), stub.WithTTRPCOptions(
		[]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(p.request)}, []ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(p.answer)}),
		stub.WithOnClose(sync.OnceFunc(func() { close(p.closed) })))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stub.Stop)
	node.Eventually(t, 20*time.Second, func() string {
		if !slices.Contains(p.seen(), "synchronize") {
			return "the plugin has not been synchronized"
		}
		return ""
	})
	return p
}

// request and answer add p.evict to messages, because the stub's API lacks evictions.
func (p *nriPlugin) request(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response, _ *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
	if id := p.evict.Swap(nil); id != nil && request.GetMethod() == "UpdateContainers" {
		request.Payload, _ = proto.Marshal(&api.UpdateContainersRequest{Evict: []*api.ContainerEviction{{ContainerId: *id, Reason: "test"}}})
	}
	return call(ctx, request, response)
}

func (p *nriPlugin) answer(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	answer, err := method(ctx, unmarshal)
	if created, ok := answer.(*api.CreateContainerResponse); ok {
		if id := p.evict.Swap(nil); id != nil {
			created.Evict = []*api.ContainerEviction{{ContainerId: *id, Reason: "test"}}
		}
	}
	return answer, err
}

// disconnect breaks the connection, as the death of a plugin does.
func (p *nriPlugin) disconnect() { _ = p.conn.Close() }

// seen returns the events since the last reset.
func (p *nriPlugin) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

func (p *nriPlugin) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = nil
}

func (p *nriPlugin) record(event string, pod *api.PodSandbox, c *api.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := pod.GetName()
	if c != nil {
		name, p.last = c.GetName(), c
	}
	p.events = append(p.events, event+" "+name)
}

func (p *nriPlugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events, p.pods, p.containers = append(p.events, "synchronize"), pods, containers
	return nil, nil
}

func (p *nriPlugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.record("run", pod, nil)
	if p.run != nil {
		return p.run(pod)
	}
	return nil
}

func (p *nriPlugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, _ *api.LinuxResources) error {
	p.record("update", pod, nil)
	return nil
}

func (p *nriPlugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.record("updated", pod, nil)
	return nil
}

func (p *nriPlugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.record("stop", pod, nil)
	return nil
}

func (p *nriPlugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.record("remove", pod, nil)
	return nil
}

func (p *nriPlugin) CreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.record("create", pod, c)
	if p.create != nil {
		return p.create(c)
	}
	return nil, nil, nil
}

func (p *nriPlugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.record("created", pod, c)
	return nil
}

func (p *nriPlugin) StartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.record("start", pod, c)
	if p.start != nil {
		return p.start(c)
	}
	return nil
}

func (p *nriPlugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.record("started", pod, c)
	return nil
}

func (p *nriPlugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container, asked *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	p.record("update", pod, c)
	if p.update != nil {
		return p.update(c, asked), nil
	}
	return nil, nil
}

func (p *nriPlugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.record("updated", pod, c)
	return nil
}

func (p *nriPlugin) StopContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.record("stop", pod, c)
	if p.stop != nil {
		return p.stop(c), nil
	}
	return nil, nil
}

func (p *nriPlugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.record("remove", pod, c)
	return nil
}

// serveNRIPlugin makes this process a plugin, as which huskd starts it from its plugin directory.
// The plugin marks every container with a variable, and exits on a container called fatal.
func serveNRIPlugin() {
	p := &nriPlugin{create: func(c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		if c.GetName() == "fatal" {
			os.Exit(1)
		}
		a := &api.ContainerAdjustment{}
		a.AddEnv("LAUNCHED", "yes")
		return a, nil, nil
	}}
	s, err := stub.New(p, stub.WithLogger(noLogger{}))
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		os.Exit(1)
	}
}
