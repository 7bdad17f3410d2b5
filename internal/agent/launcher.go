package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/idrange"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/trace"
)

// launcher creates the sandboxes of a pod and starts its containers.
type launcher struct {
	*podState
	inventory *inventory
	images    *puller
	volumes   *volumes
	messages  *messages
	prober    *prober

	creating       bool            // a sandbox
	starting       map[string]bool // containers, by name
	sandboxFailure podplan.Failure
	startFailures  map[string]podplan.Failure // by container name
	retry          bool                       // the next sandbox needn't wait
}

func (l *launcher) createSandbox(attempt uint32) {
	rec := l.record()
	if attempt > rec.First {
		l.normalEvent("", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	config := criconfig.SandboxConfig(rec.Pod, attempt, l.a.cfg.Node())
	config.Labels[Label] = "true"
	ctx, end := l.span(l.a.closing, "agent/CreateSandbox")
	var st sandbox.Status
	var err error
	if config.LogDirectory, err = l.logDirectory(); err == nil {
		st, err = l.runSandbox(ctx, config, criconfig.Handler(l.manifest))
	}
	end(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.nudge()
	l.creating = false
	if err != nil {
		l.sandboxFailure = view.Failure(err)
		l.warn("agent: creating a sandbox failed", err)
		if l.sandboxFailure.Unattached {
			select {
			case l.a.Unattached <- struct{}{}:
			default:
			}
		}
		return
	}
	l.inventory.add(st.ID)
}

// attachable makes the pod try again at once if the network couldn't take its sandbox.
func (l *launcher) attachable() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sandboxFailure.Unattached {
		l.retry = true
		l.nudge()
	}
}

// logDirectory returns the directory of the pod's logs, after recording it. On a cluster's node it
// has the name that the pod has on the API server, where log collectors look the pod up.
func (l *launcher) logDirectory() (string, error) {
	rec, node := l.record(), l.a.cfg.Node()
	named := rec.Pod
	if node.InCluster {
		named = &corev1.Pod{ObjectMeta: rec.Pod.ObjectMeta}
		named.Name = Pod{Manifest: rec.Pod, Source: rec.Source}.ReportedName(node.Name)
	}
	return l.a.cfg.Logs.Create(l.uid(), criconfig.LogDirectory(named, node))
}

// portTaken returns why a pod in the node's network can't have its ports. Its processes could
// listen on them, but connections would go elsewhere.
func (l *launcher) portTaken() error {
	if !l.manifest.Spec.HostNetwork || l.a.cfg.PortTaken == nil {
		return nil
	}
	for c := range podspec.Containers(&l.manifest.Spec) {
		for _, p := range c.Ports {
			port := pod.PortMapping{Protocol: pod.Protocol(strings.ToLower(string(p.Protocol))), HostPort: uint16(p.HostPort), Port: uint16(p.ContainerPort)}
			if err := l.a.cfg.PortTaken(port); err != nil {
				return err
			}
		}
	}
	return nil
}

// runSandbox runs a sandbox, with its own user IDs if the pod sets hostUsers: false.
func (l *launcher) runSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (st sandbox.Status, err error) {
	users := l.manifest.Spec.HostUsers
	namespaced := users != nil && !*users
	if namespaced {
		l.a.UserNamespaced.started.Add(1)
		defer func() {
			if err != nil {
				l.a.UserNamespaced.failed.Add(1)
			}
		}()
	}
	if err := l.portTaken(); err != nil {
		return sandbox.Status{}, err
	}
	if namespaced {
		release, err := l.a.idRanges.Assign(config, l.a.cfg.Sandboxes.List)
		if err != nil {
			return sandbox.Status{}, err
		}
		defer release()
	}
	return l.a.cfg.Sandboxes.Run(ctx, config, handler)
}

// startContainer starts a container and runs its postStart hook, which ctx cancels.
func (l *launcher) startContainer(ctx context.Context, do podplan.StartContainer) {
	id, err := l.createAndStart(do)
	if err == nil {
		l.prober.runPostStart(ctx, id, criconfig.FindContainer(l.record().Pod, do.Name))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.nudge()
	delete(l.starting, do.Name)
	if err != nil {
		f, what := view.Failure(err), ""
		if _, is := errors.AsType[*criconfig.NotFoundError](err); is {
			what = ": " + l.rec.from().Object()
			f.Message += what
		}
		if m, is := errors.AsType[mountError](err); is {
			f.Reason = podplan.ReasonMount
			l.warningEvent("", f.Reason, fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v%s", m.volume, m.error, what))
		} else if _, is := errors.AsType[configError](err); is {
			f.Reason = "CreateContainerConfigError"
		}
		l.startFailures[do.Name] = f
		l.refuseEphemeral(do.Name, f)
		l.warn("agent: starting a container failed", err)
	}
}

// configError is an error of a container that has no config, because something that its manifest
// references is missing.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

// createAndStart returns an error if the container never ran; the container is removed then. If it
// did run, its status says how it ended.
func (l *launcher) createAndStart(do podplan.StartContainer) (id string, err error) {
	ctx, end := l.span(l.a.closing, "agent/StartContainer", trace.ContainerName, do.Name)
	defer func() { end(err) }()
	config, err := l.containerConfig(do)
	if err == nil && l.a.cfg.Devices != nil {
		err = l.a.cfg.Devices(ctx, l.record().Pod, config)
	}
	if err != nil {
		return "", configError{err}
	}
	config.Labels[Label] = "true"
	if st, err := l.a.cfg.Sandboxes.Get(do.Sandbox); err == nil {
		idrange.Apply(config, st.Config)
	}
	l.images.present(criconfig.FindContainer(l.record().Pod, do.Name))
	st, err := l.a.cfg.Containers.Create(ctx, do.Sandbox, config)
	if err != nil {
		return "", err
	}
	if err := l.a.cfg.Logs.Link(st.Log, st.ID); err != nil { // before the first line is written
		l.warn("agent: log collectors may not find the log of a container", err, "container", do.Name)
	}
	l.normalEvent(do.Name, "Created", "Container created")
	err = l.a.cfg.Containers.Start(ctx, st.ID)
	if st, getErr := l.a.cfg.Containers.Get(st.ID); err != nil && getErr == nil && !st.Started.IsZero() {
		l.warn("agent: starting a container failed", err)
		return st.ID, nil
	}
	if err != nil {
		err = errors.Join(err, l.a.cfg.Containers.Remove(ctx, st.ID), l.a.cfg.Logs.Unlink(st.Log, st.ID))
	}
	return st.ID, err
}

// containerConfig returns CRI's config of a container, after preparing what it needs on the node.
func (l *launcher) containerConfig(do podplan.StartContainer) (*runtimeapi.ContainerConfig, error) {
	rec, node := l.record(), l.a.cfg.Node()
	c := criconfig.FindContainer(rec.Pod, do.Name)
	st, err := l.a.cfg.Sandboxes.Get(do.Sandbox)
	if err != nil {
		return nil, err
	}
	img, allowed, err := l.images.local(c.Image, rec.Objects)
	if err == nil && !allowed { // since it was checked, the name has moved to an image of others
		err = image.Denied(c.Image)
	}
	if err != nil {
		return nil, err
	}
	run := criconfig.Run{
		Attempt:   do.Attempt,
		PodIPs:    l.a.addresses(st),
		ImageRef:  img.ID,
		ImageUser: img.Config.User,
		Objects:   rec.Objects,
	}
	if err := l.volumes.mount(c, &run); err != nil {
		return nil, err
	}
	if err := writeHosts(l.a.cfg.Sandboxes.Files(st).Hosts, rec.Pod, run.PodIPs, node); err != nil {
		return nil, err
	}
	if err := l.messages.mount(c, &run); err != nil {
		return nil, err
	}
	config, err := criconfig.ContainerConfig(rec.Pod, c, run, node)
	if err == nil {
		err = l.targetProcesses(config, rec.Pod, do.Sandbox)
	}
	return config, err
}

// writeHosts writes the pod's /etc/hosts. Running containers have it mounted, so that it is left
// alone if it is right.
func writeHosts(path string, pod *corev1.Pod, ips []string, n criconfig.Node) error {
	node, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	want := criconfig.HostsFile(pod, ips, node, n)
	if holds(path, want) {
		return nil
	}
	return os.WriteFile(path, want, 0o644)
}

// holds reports whether a file has this content. Containers write to the file, so it may be of any
// size.
func holds(path string, content []byte) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	have, err := io.ReadAll(io.LimitReader(f, int64(len(content))+1))
	return err == nil && bytes.Equal(have, content)
}

// targetProcesses makes an ephemeral container share the processes of the container that it
// targets, which must run. It leaves other containers as they are.
func (l *launcher) targetProcesses(config *runtimeapi.ContainerConfig, pod *corev1.Pod, sandbox string) error {
	i := ephemeralIndex(pod, config.GetMetadata().GetName())
	if i < 0 || pod.Spec.EphemeralContainers[i].TargetContainerName == "" {
		return nil
	}
	c := pod.Spec.EphemeralContainers[i]
	runs := l.a.cfg.Containers.List(sandbox)
	at := slices.IndexFunc(runs, func(st container.Status) bool {
		return st.Name() == c.TargetContainerName && view.ContainerState(st) == podplan.ContainerRunning
	})
	if at < 0 {
		return fmt.Errorf("container %q: its target, container %q, is not running", c.Name, c.TargetContainerName)
	}
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	options.Pid, options.TargetId = runtimeapi.NamespaceMode_TARGET, runs[at].ID
	return nil
}

// refuseEphemeral records that the program of an ephemeral container can't be started. The
// container has ended by that, and isn't tried again. The caller holds mu.
func (l *launcher) refuseEphemeral(name string, f podplan.Failure) {
	if f.ExitCode == 0 || ephemeralIndex(l.rec.Pod, name) < 0 {
		return
	}
	rec := l.rec
	rec.Refused = map[string]podplan.Failure{name: f}
	maps.Copy(rec.Refused, l.rec.Refused)
	if err := l.save(l.a.records.Put, rec); err != nil {
		l.a.cfg.Log.Error("agent: an ephemeral container will be tried again", "container", name, "error", err)
	}
}

func ephemeralIndex(pod *corev1.Pod, name string) int {
	return slices.IndexFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name })
}

// restartAll records that all containers start again.
func (l *launcher) restartAll(do podplan.RestartAll) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec := l.rec
	rec.FirstRuns = do.FirstRuns
	if err := l.save(l.a.records.Put, rec); err != nil {
		return err
	}
	clear(l.startFailures)
	l.normalEvent(do.Container, "RestartAllContainers", "container "+do.Container+" has exited with a code for which its restartPolicyRules restart all containers")
	return nil
}
