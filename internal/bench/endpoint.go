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

// Endpoint is a runtime to measure.
type Endpoint struct {
	Name   string // empty is what the runtime calls itself
	Socket string // path
	// Restart is a command and its arguments that restarts it.
	Restart []string
}

const (
	// namespace is that of all pods of benchmarks.
	namespace = "husk-bench"
	// runLabel is of each pod; its value is the run.
	runLabel = "husk-bench/run"
	// answerMax bounds one message, such as a list of all pods.
	answerMax = 64 << 20
	// callTime is how long one call may take.
	callTime = 2 * time.Minute
)

// endpoint is a connection to one.
type endpoint struct {
	Endpoint
	description string // its own name and version
	run         string
	logs        string // directory
	conn        *grpc.ClientConn
	cri         runtimeapi.RuntimeServiceClient
	images      runtimeapi.ImageServiceClient
	husk        *client.Client // its own service, if it is a huskd
	made        atomic.Int64   // names given out
}

// connect connects to an endpoint for a run.
func connect(ctx context.Context, to Endpoint, run, logs string) (*endpoint, error) {
	conn, err := grpc.NewClient("unix://"+to.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)))
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", to.Socket, err)
	}
	e := &endpoint{Endpoint: to, run: run, logs: logs, conn: conn, cri: runtimeapi.NewRuntimeServiceClient(conn), images: runtimeapi.NewImageServiceClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	version, err := e.cri.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("endpoint %s doesn't answer: %w: is it the socket of a CRI runtime?", to.Socket, plain(err)), conn.Close())
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

// connectTime is how long an endpoint may take to greet.
const connectTime = 15 * time.Second

func (e *endpoint) close() {
	if e.husk != nil {
		e.husk.Close()
	}
	_ = e.conn.Close() // fails only if closed before
}

// plain takes gRPC's own words off an error of a call.
func plain(err error) error {
	if err == nil {
		return nil
	}
	_, message, found := strings.Cut(err.Error(), " desc = ")
	if !found {
		return err
	}
	return errors.New(message)
}

// call bounds one call. What was begun is waited for when the run is
// interrupted, so that everything is known that there is to remove.
func call[Q, A any](ctx context.Context, method func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	answer, err := method(ctx, request)
	return answer, plain(err)
}

// pod is a sandbox that was made.
type pod struct {
	id         string
	config     *runtimeapi.PodSandboxConfig
	containers []string
}

// podConfig is that of a new pod, as a kubelet would ask for it: it has a
// network of its own and shares no PID namespace.
func (e *endpoint) podConfig() *runtimeapi.PodSandboxConfig {
	name := e.podName()
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: namespace, Uid: name},
		Hostname:     name,
		LogDirectory: filepath.Join(e.logs, name),
		Labels:       map[string]string{runLabel: e.run},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func (e *endpoint) podName() string { return fmt.Sprintf("%s-%d", e.run, e.made.Add(1)) }

func (e *endpoint) runPod(ctx context.Context) (*pod, error) {
	p := &pod{config: e.podConfig()}
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

// create makes a container in p that runs until it is stopped.
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

// idle is a program that waits, in every image that has the usual ones.
var idle = []string{"sleep", "1000000"}

func (e *endpoint) start(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// stop ends a container without grace: how long a program takes to end by
// itself is not the runtime's.
func (e *endpoint) stop(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.StopContainer, &runtimeapi.StopContainerRequest{ContainerId: id})
	return err
}

func (e *endpoint) remove(ctx context.Context, id string) error {
	_, err := call(ctx, e.cri.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return err
}

// runContainer is create and start.
func (e *endpoint) runContainer(ctx context.Context, p *pod, image string) (id string, err error) {
	if id, err = e.create(ctx, p, image); err == nil {
		err = e.start(ctx, id)
	}
	return id, err
}

// exec runs a program in a container that ends at once.
func (e *endpoint) exec(ctx context.Context, id string) error {
	answer, err := call(ctx, e.cri.ExecSync, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: int64(callTime / time.Second)})
	if err == nil && answer.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", answer.ExitCode)
	}
	return err
}

// ensureImage pulls the image if it isn't there.
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

// pid is that of the process that serves.
func (e *endpoint) pid() (int, error) { return gauge.Listener(e.Socket) }

// sweepers is how many pods are removed at once.
const sweepers = 10

// sweep removes the pods of this run, and of runs that were killed.
func (e *endpoint) sweep(ctx context.Context, mine bool) error {
	list, err := call(ctx, e.cri.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("endpoint %s: list pods: %w: remove those in namespace %s by hand", e.Name, err, namespace)
	}
	errs := e.sweepManifests(ctx, mine)
	var all sync.WaitGroup
	var mu sync.Mutex
	free := make(chan struct{}, sweepers)
	for _, p := range list.Items {
		run := p.Labels[runLabel]
		if run == "" || !e.over(run, mine) {
			continue
		}
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			if err := e.endPod(ctx, p.Id); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("endpoint %s: pod %s is left: %w: remove it by hand", e.Name, p.Metadata.GetName(), err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

const (
	// endTime is how long the removal of a pod is tried: runtimes fail at it now
	// and then, and succeed when they are asked again.
	endTime = 30 * time.Second
	endGap  = 200 * time.Millisecond
)

// endPod stops and removes a pod, whatever it takes.
func (e *endpoint) endPod(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	return until(ctx, endGap, func() error {
		if err := e.stopPod(ctx, id); err != nil {
			return err
		}
		return e.removePod(ctx, id)
	})
}

// over says whether the pods of a run are to be removed.
func (e *endpoint) over(run string, mine bool) bool {
	if run == e.run {
		return mine
	}
	return dead(run)
}
