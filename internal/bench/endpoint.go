package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/bench/gauge"
	"github.com/huskd/husk/internal/cli/client"
)

// Endpoint is a runtime to benchmark.
type Endpoint struct {
	Name   string // empty for the runtime's own name
	Socket string // path
	// Restart is the command that restarts it.
	Restart []string
}

const (
	// namespace is the namespace of all pods.
	namespace = "husk-bench"
	// runLabel is the label of each pod with the name of its run.
	runLabel = "husk-bench/run"
	// answerMax bounds one message, such as a list of all pods.
	answerMax = 64 << 20
	// callTimeout bounds one call.
	callTimeout = 2 * time.Minute
)

// endpoint is a connection to an Endpoint.
type endpoint struct {
	Endpoint
	description string // name and version of the runtime
	run         string
	logs        string // directory
	conn        *grpc.ClientConn
	cri         runtimeapi.RuntimeServiceClient
	images      runtimeapi.ImageServiceClient
	husk        *client.Client // huskd's own API, if it is a huskd
	names       atomic.Int64   // how many names were given out
}

// connect connects to an endpoint.
func connect(ctx context.Context, to Endpoint, run, logs string) (*endpoint, error) {
	conn, err := grpc.NewClient("unix://"+to.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)))
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", to.Socket, err)
	}
	e := &endpoint{Endpoint: to, run: run, logs: logs, conn: conn, cri: runtimeapi.NewRuntimeServiceClient(conn), images: runtimeapi.NewImageServiceClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	version, err := e.cri.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("endpoint %s doesn't answer: %w: is it the socket of a CRI runtime?", to.Socket, withoutPrefix(err)), conn.Close())
	}
	e.description = version.RuntimeName + " " + version.RuntimeVersion
	if e.Name == "" {
		e.Name = version.RuntimeName
	}
	if version.RuntimeName == "husk" {
		if e.husk, err = client.New(to.Socket); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return e, nil
}

// connectTimeout is how long an endpoint may take to answer the first call.
const connectTimeout = 15 * time.Second

func (e *endpoint) close() {
	if e.husk != nil {
		e.husk.Close()
	}
	_ = e.conn.Close() // fails only if it is closed already
}

// withoutPrefix returns an error of gRPC without gRPC's own words.
func withoutPrefix(err error) error {
	if err == nil {
		return nil
	}
	_, message, found := strings.Cut(err.Error(), " desc = ")
	if !found {
		return err
	}
	return errors.New(message)
}

// call makes one call with a timeout. It ignores the cancellation of the run, so that everything
// which was created is known and can be removed.
func call[Q, A any](ctx context.Context, method func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	answer, err := method(ctx, request)
	return answer, withoutPrefix(err)
}

// pod is a sandbox that was created.
type pod struct {
	id         string
	config     *runtimeapi.PodSandboxConfig
	containers []string
}

// podConfig returns the configuration of a new pod as a kubelet would make it, with its own
// network. pid says whether its containers share a PID namespace: CONTAINER or POD.
func (e *endpoint) podConfig(pid runtimeapi.NamespaceMode) *runtimeapi.PodSandboxConfig {
	name := e.podName()
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: name},
		Hostname:     name,
		LogDirectory: filepath.Join(e.logs, name),
		Labels:       map[string]string{runLabel: e.run},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: pid},
		}},
	}
}

func (e *endpoint) podName() string { return fmt.Sprintf("%s-%d", e.run, e.names.Add(1)) }

func (e *endpoint) runPod(ctx context.Context) (*pod, error) {
	return e.runPodOf(ctx, e.podConfig(runtimeapi.NamespaceMode_CONTAINER))
}

func (e *endpoint) runPodOf(ctx context.Context, config *runtimeapi.PodSandboxConfig) (*pod, error) {
	p := &pod{config: config}
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil { // as the kubelet does
		return nil, err
	}
	answer, err := call(ctx, e.cri.RunPodSandbox, &runtimeapi.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		return nil, err
	}
	p.id = answer.PodSandboxId
	return p, nil
}

func (e *endpoint) stopPod(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

func (e *endpoint) removePod(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// create creates a container in p that runs until it is stopped.
func (e *endpoint) create(ctx context.Context, p *pod, image string) (id string, err error) {
	name := fmt.Sprintf("c%d", len(p.containers))
	answer, err := call(ctx, e.cri.CreateContainer, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Image:    &runtimeapi.ImageSpec{Image: image},
			Command:  idle,
			Labels:   map[string]string{runLabel: e.run},
			LogPath:  name + ".log",
			Linux:    &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions}},
		},
	})
	if err != nil {
		return "", err
	}
	p.containers = append(p.containers, answer.ContainerId)
	return answer.ContainerId, nil
}

// idle is a program that sleeps, in every image with the usual tools.
var idle = []string{"sleep", "1000000"}

func (e *endpoint) start(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// stop stops a container without a grace period, as the time that a program takes to end is not the
// runtime's.
func (e *endpoint) stop(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.StopContainer, &runtimeapi.StopContainerRequest{ContainerId: id})
	return err
}

func (e *endpoint) remove(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return err
}

// runContainer creates and starts a container.
func (e *endpoint) runContainer(ctx context.Context, p *pod, image string) (id string, err error) {
	if id, err = e.create(ctx, p, image); err == nil {
		err = e.start(ctx, id)
	}
	return id, err
}

// exec runs a program that exits at once in a container.
func (e *endpoint) exec(ctx context.Context, id string) error {
	answer, err := call(ctx, e.cri.ExecSync, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: int64(callTimeout / time.Second)})
	if err == nil && answer.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", answer.ExitCode)
	}
	return err
}

// ensureImage pulls the image if it is missing.
func (e *endpoint) ensureImage(ctx context.Context, image string) error {
	spec := &runtimeapi.ImageSpec{Image: image}
	answer, err := call(ctx, e.images.ImageStatus, &runtimeapi.ImageStatusRequest{Image: spec})
	if err == nil && answer.Image == nil {
		_, err = call(ctx, e.images.PullImage, &runtimeapi.PullImageRequest{Image: spec})
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", image, err)
	}
	return nil
}

// pid returns the process that serves the endpoint.
func (e *endpoint) pid() (int, error) { return gauge.Listener(e.Socket) }

// cleanupParallelism is how many pods are removed at a time.
const cleanupParallelism = 10

// cleanUp removes the pods of runs that were killed, and with own those of this run.
func (e *endpoint) cleanUp(ctx context.Context, own bool) error {
	list, err := call(ctx, e.cri.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("endpoint %s: list pods: %w: remove the pods in namespace %s by hand", e.Name, err, namespace)
	}
	errs := e.cleanUpManifests(ctx, own)
	var all sync.WaitGroup
	var mu sync.Mutex
	free := make(chan struct{}, cleanupParallelism)
	for _, p := range list.Items {
		run := p.Labels[runLabel]
		if run == "" || !e.isStale(run, own) {
			continue
		}
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			if err := e.stopAndRemovePod(ctx, p.Id); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("endpoint %s: remove pod %s: %w: remove it by hand", e.Name, p.Metadata.GetName(), err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

const (
	// removeTimeout is how long the removal of a pod is retried: it fails occasionally in some
	// runtimes, and succeeds later.
	removeTimeout  = 30 * time.Second
	removeInterval = 200 * time.Millisecond
)

// stopAndRemovePod stops and removes a pod, with retries.
func (e *endpoint) stopAndRemovePod(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	return poll(ctx, removeInterval, func() error {
		if err := e.stopPod(ctx, id); err != nil {
			return err
		}
		return e.removePod(ctx, id)
	})
}

// isStale reports whether the pods of a run should be removed.
func (e *endpoint) isStale(run string, own bool) bool {
	if run == e.run {
		return own
	}
	return isDead(run)
}
