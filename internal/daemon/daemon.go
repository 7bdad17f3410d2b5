// Package daemon wires huskd together: it makes the owners, connects them, and runs the servers.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/api"
	"github.com/huskd/husk/internal/api/fileapi"
	"github.com/huskd/husk/internal/api/imageapi"
	"github.com/huskd/husk/internal/api/serviceapi"
	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/cri"
	"github.com/huskd/husk/internal/deviceplugin"
	"github.com/huskd/husk/internal/doctor"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/housekeeping"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/image/credentialprovider"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/metrics"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/displaced"
	"github.com/huskd/husk/internal/network/enforcement"
	"github.com/huskd/husk/internal/network/nodestore"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/peering"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/service/declared"
	"github.com/huskd/husk/internal/network/serviceproxy"
	"github.com/huskd/husk/internal/nri"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/plugin"
	"github.com/huskd/husk/internal/plugin/rpc"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/resourceclass"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/infra"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/sdnotify"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/stream"
	"github.com/huskd/husk/internal/trace/export"
	"github.com/huskd/husk/internal/version"
	"github.com/huskd/husk/internal/workload/controller"
)

// daemon holds the parts of huskd, in the order in which they are made.
type daemon struct {
	cfg        config.Config
	log        *slog.Logger
	logOutput  logOutput
	instance   pod.Instance
	locks      locks
	service    *sdnotify.Notifier // nil without a service manager
	reloads    Reload
	shutdown   atomic.Bool // all pods are stopped
	goingDown  atomic.Bool // the machine is
	metrics    *metrics.Metrics
	facts      host.Facts
	resources  nodeResources
	keeper     *housekeeping.Housekeeper
	meter      *stats.Meter   // shared by all readers, because it caches what it reads
	tracer     *export.Tracer // nil if tracing is off
	membership *membership    // nil outside of a cluster
	server     *networkServer // nil without network-kubeconfig
	journal    *journal.Journal
	classes    *resourceclass.Classes
	cgroups    *cgroup.QoSTree
	monitors   *os.File // directory of the cgroup for processes that outlive huskd; nil on cgroup v1

	images    *image.Store
	logins    *credentialprovider.Providers // nil without any
	network   *network.Network
	nodes     *peering.Peering         // nil on a node by itself
	displaced *displaced.Watcher       // likewise
	policy    *enforcement.Enforcement // nil if network policy is off
	services  *serviceproxy.Proxy
	names     *names // nil if huskd doesn't serve DNS
	handlers  handlers
	plugin    *plugin.Plugin // husk-cni, in process
	cni       *cni.Host
	nri       *nri.Relay // nil if NRI is off
	driver    drivers

	containers *container.Service
	sandboxes  *sandbox.Service
	agent      *agent.Agent
	workloads  *controller.Controller
	objects    *objects.Store
	devices    *deviceplugin.Manager            // nil outside of a cluster
	manifests  atomic.Pointer[source.Directory] // nil without one
	orphans    map[string]error                 // directories of pods without a record, and why they were kept
	events     cri.Events
	streams    *stream.Server
}

// Run runs huskd until ctx ends. Pods keep running after that.
func Run(ctx context.Context, cfg config.Config, reloads Reload) error {
	d := &daemon{cfg: cfg, instance: pod.InstanceOf(cfg.Root), logOutput: logOutput{to: os.Stderr}, reloads: reloads}
	_ = d.logOutput.level.UnmarshalText([]byte(cfg.LogLevel)) // config has checked it
	d.log = logger(cfg.LogFormat, &d.logOutput.level, &d.logOutput)
	slog.SetDefault(d.log)
	d.service = sdnotify.Open(d.log)
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("user %d can't make namespaces and mounts: start huskd as root", uid)
	}
	logKubelet(cfg, d.log)
	doctor.LogExposures(cfg, d.log)
	began := time.Now()
	var err error
	d.locks, err = lockDirs(cfg)
	vacated := false
	defer func() {
		d.locks.release()
		if vacated {
			unshareDirs(d.cfg, d.log)
		}
	}()
	if err != nil {
		return err
	}
	socket, err := listen(cfg.Listen)
	if err != nil {
		return err
	}
	defer os.Remove(strings.TrimPrefix(cfg.Listen, scheme))
	defer socket.Close()
	defer func() { vacated = d.close() }()
	if cfg.NetworkOnly {
		return d.runNetworkOnly(ctx, socket)
	}
	if err := d.open(ctx); err != nil {
		return err
	}
	shareDirs(d.cfg, d.log)
	d.wire()
	d.resume(ctx)
	d.log.Info("huskd is serving", "socket", cfg.Listen, "version", version.Version, "instance", d.instance, "after", time.Since(began).Round(time.Millisecond))
	return d.serve(ctx, socket)
}

// open opens all parts that have state. It changes nothing that runs.
func (d *daemon) open(ctx context.Context) error {
	d.metrics = d.newMetrics()
	d.facts = host.Probe(d.cfg.Root)
	openMonitors(d)
	d.meter = stats.New(d.facts.Cgroup, d.inside)
	var err error
	if d.resources, err = newNodeResources(d.cfg, d.facts); err != nil {
		return err
	}
	if d.cfg.Tracing.Endpoint != "" {
		d.tracer, err = export.New(ctx, export.Config{
			Endpoint: d.cfg.Tracing.Endpoint, Sampling: d.cfg.Tracing.Sampling, Node: nodeName(d.cfg), Log: d.log,
		})
		if err != nil {
			return err
		}
	}
	if d.membership, err = newMembership(d); err != nil {
		return err
	}
	if err := openNetworkServer(d); err != nil {
		return err
	}
	if d.logins, err = credentialprovider.Open(credentialprovider.Config{File: d.cfg.LoginConf, Dir: d.cfg.LoginBin, Log: d.log}); err != nil {
		return err
	}
	if err := d.openJournal(); err != nil {
		return err
	}
	d.devices = openDevices(d)
	if err := checkDriver(&d.cfg, d.facts, d.log); err != nil {
		return err
	}
	if d.classes, err = resourceclass.Open(resourceclass.Config{BlockIO: d.cfg.BlockIO, RDT: d.cfg.RDT}); err != nil {
		return err
	}
	tree, err := cgroup.New(d.facts.Cgroup, d.instance.Cgroup())
	if err != nil {
		return err
	}
	d.cgroups = cgroup.NewQoSTree(tree)
	subnets, err := d.cfg.Prefixes()
	if err != nil {
		return err
	}
	if d.nodes, err = openPeering(d, subnets); err != nil {
		return err
	}
	var opening errgroup.Group
	opening.Go(func() (err error) {
		d.images, err = image.Open(ctx, image.Config{Root: filepath.Join(d.cfg.Root, "images"), CertsDir: d.cfg.CertsDir, ShortNames: d.cfg.ShortNames, Verify: d.cfg.Verification(), Pulled: d.metrics.Pull, Log: d.log})
		return err
	})
	opening.Go(func() error { return d.openNetwork(ctx, subnets) })
	opening.Go(func() error {
		d.handlers = d.findHandlers(ctx)
		return nil
	})
	if err := opening.Wait(); err != nil {
		return err
	}
	d.plugin = &plugin.Plugin{Linger: linger, Log: d.log}
	var bad []error
	d.cni, bad = cni.New(cni.Config{
		Instance: d.instance, Journal: d.journal, State: d.cfg.State, Builtin: d.network,
		ConfDir: d.cfg.CNIConf, BinDirs: d.cfg.CNIBin, MaxNetworks: d.cfg.CNIMax, CacheDir: libcni.CacheDir,
		Plugins: map[string]cni.Plugin{plugin.Type: func(ctx context.Context, getenv func(string) string, stdin []byte) ([]byte, error) {
			return d.plugin.Call(ctx, plugin.ArgsOf(getenv), stdin)
		}},
		Ranges: subnets, Ran: d.metrics.Plugin, Log: d.log,
	})
	for _, err := range bad {
		d.log.Error("a record was set aside", "error", err)
	}
	return nil
}

func (d *daemon) openJournal() (err error) {
	var damaged []journal.Damage
	if d.journal, damaged, err = journal.Open(filepath.Join(d.cfg.Root, "journal")); err != nil {
		return err
	}
	if len(damaged) > 0 {
		d.log.Error("journal: what can't be read was set aside; pods that only it recorded are removed, policies are kept", "parts", len(damaged), "saved", damaged[0].Saved)
	}
	return nil
}

// openPeering opens what joins the network with those of other nodes, if that is configured.
func openPeering(d *daemon, subnets []netip.Prefix) (*peering.Peering, error) {
	ips, err := d.cfg.NodeIPs()
	if err == nil && d.cfg.Store != config.StoreNone {
		err = checkNodeIPs(d.cfg)
	}
	if err != nil {
		return nil, err
	}
	return peering.Open(peering.Config{
		Config: nodestore.Config{
			PodNetwork: d.cfg.PodNetwork, Subnets: subnets, Node: nodeName(d.cfg), Boot: d.facts.BootID,
			Connect: clusterClient(d), Journal: d.journal, Log: d.log,
		},
		Instance: d.instance, NodeIPs: ips, Root: d.cfg.Root, State: d.cfg.State,
		Event: pathEvents(d), Lost: func(lost []peer.Lost) { d.displaced.Set(lost) }, Monitors: d.monitors,
	})
}

// policyConfig says how network policy is enforced.
func policyConfig(d *daemon, subnets []netip.Prefix) enforcement.Config {
	c := enforcement.Config{
		PodNetwork: d.cfg.PodNetwork, Instance: d.instance, File: filepath.Join(d.cfg.Root, "network", "policies.json"), Denied: podEvent(d, "PolicyDenied"), Log: d.log,
		Connect: clusterClient(d),
	}
	if c.Connect == nil && !d.cfg.NetworkOnly {
		c.Node, c.Subnets = nodeName(d.cfg), subnets
		if store := d.nodes.Store(); store != nil {
			c.Workloads = store.Workloads
		}
		c.Pods = func() []*policy.Pod { return declaredPods(d) }
		if d.cfg.Manifests != "" {
			c.Origins = append(c.Origins, string(source.File))
		}
		if d.cfg.Web != "" {
			c.Origins = append(c.Origins, string(source.Web))
		}
		c.Origins = append(c.Origins, string(source.Run))
	}
	return c
}

// servicesConfig says which Services there are.
func servicesConfig(d *daemon, subnets []netip.Prefix) serviceproxy.Config {
	c := serviceproxy.Config{PodNetwork: d.cfg.PodNetwork, Instance: d.instance, Node: nodeName(d.cfg), Log: d.log}
	switch {
	case d.membership != nil:
		c.Connect = d.membership.connect
	case !d.cfg.NetworkOnly:
		c.Manifests = declared.Config{
			Journal: d.journal, PodSubnets: subnets, Others: others(d), Changed: d.names.ServicesChanged,
			Pods: func() []agent.Pod { return d.agent.List() }, Report: func(e event.Event) { d.agent.Events.Add(e) },
		}
	}
	return c
}

// openNetwork opens the network and connects it with those of other nodes.
func (d *daemon) openNetwork(ctx context.Context, subnets []netip.Prefix) (err error) {
	cfg := network.Config{
		Instance: d.instance, Dir: filepath.Join(d.cfg.Root, "network"), Mode: plan.Mode(d.cfg.Network),
		Subnets: subnets, Masquerade: d.cfg.Masquerade, Log: d.log,
	}
	if d.nodes != nil {
		cfg.Subnets, cfg.Cluster, cfg.May = nil, subnets, d.nodes.May
		cfg.Encrypted = d.nodes.Backend() == backend.OnlyWireGuard
		cfg.BGP, cfg.Routers = d.nodes.Routers()
	}
	if d.policy, err = enforcement.Open(policyConfig(d, subnets)); err != nil {
		return err
	}
	if d.policy != nil {
		cfg.Policy = d.policy
	}
	d.names = openNames(d, subnets)
	cfg.Resolver = d.names.address()
	cfg.PortTaken, cfg.Refused = portTaken(d), podEvent(d, "TooManyConnections")
	if d.network, err = network.Open(ctx, cfg); err != nil {
		return err
	}
	if d.services, err = serviceproxy.Open(servicesConfig(d, subnets)); err != nil {
		return err
	}
	if d.nodes != nil {
		d.displaced = displaced.New(displacedConfig(d))
	}
	return d.nodes.Connect(d.network)
}

// portTaken returns a function that says why a pod can't have a port of the node.
func portTaken(d *daemon) func(pod.PortMapping) error {
	return func(m pod.PortMapping) error { return d.services.Taken(m) }
}

// linger is how long a link waits to be deleted together with others.
const linger = 50 * time.Millisecond

// wire makes the owners and connects them.
func (d *daemon) wire() {
	pods, containers := d.openNRI()
	driver := d.drivers()
	d.driver = driver
	prewarm := cgroup.NewPrewarmer(d.facts.Cgroup).Start
	d.containers = container.New(container.Config{
		Root: d.cfg.Root, State: d.cfg.State, Journal: d.journal,
		Runtime: driver, Sessions: driver, Checkpointer: driver, Images: images{d.images}, Sandboxes: sandboxes{d}, Hooks: containers,
		Host: d.facts, Limits: spec.Limits{Pids: int64(d.cfg.PidsLimit)}, Log: d.log,
		DefaultCapabilities: d.cfg.DefaultCapabilities,
		RestoreCheckpoints:  d.cfg.RestoreCheckpoints, ResourceClasses: d.classes,
		Prewarm: prewarm,
		Changed: func(st container.Status) {
			d.agent.ContainerChanged(st)
			if !st.Started.IsZero() && !st.Finished {
				d.keeper.Started(st)
			}
			d.events.Container(st)
		},
		Stepped: d.metrics.ContainerStep,
	})
	d.sandboxes = sandbox.New(sandbox.Config{
		Instance: d.instance, State: d.cfg.State, Journal: d.journal,
		Network: d.cni, Containers: d.containers, Hooks: pods,
		Infra: infra.Driver{Host: d.facts, Runtime: driver}, Prewarm: prewarm,
		Host: d.facts, Log: d.log,
		Handlers: d.handlers, Cgroups: podCgroups{d.cgroups, d.cfg.Systemd(), int64(d.cfg.PodPidsLimit), d.resources.limits.Pids},
		Changed: func(st sandbox.Status) {
			d.agent.SandboxChanged(st)
			d.events.Sandbox(st)
		},
		Stepped: d.metrics.SandboxStep,
	})
	config := agent.Config{
		Journal: d.journal, Sandboxes: d.sandboxes, Containers: d.containers, Images: d.images,
		Volumes: d.volumes(), Logs: podLogs(d.cfg), Logins: d.logins.Logins,
		Node: nodeFacts(d),
		Memory: func(cgroup string) (used, limit uint64) {
			if u, err := d.meter.Cgroup(cgroup); err == nil {
				return u.Memory.Used, u.Memory.Limit
			}
			return 0, 0
		},
		PortTaken: portTaken(d),
		Begin:     d.metrics.Begin(d.tracer.Begin),
		Changed:   podChanged(d),
		Log:       d.log,
	}
	if d.devices != nil {
		config.Devices = d.devices.Configure
	}
	d.agent = agent.New(config)
	d.keeper = d.housekeeper()
	d.workloads = controller.New(controller.Config{Journal: d.journal, Pods: d.agent, Claims: d.volumes(), Events: d.agent.Events, Log: d.log})
	d.objects = objects.New(objects.Config{Journal: d.journal, Policies: d.policy.Declares(), Deliver: declare(d)})
	for _, file := range d.journal.Damaged() {
		d.agent.Events.Add(event.Event{Warning: true, Reason: "JournalDamaged", Message: file + " has what couldn't be read of the journal: husk doctor says more"})
	}
}

// resume continues with what is recorded. It logs the errors of a part and goes on with the others.
func (d *daemon) resume(ctx context.Context) {
	logAll := func(what string, errs ...error) {
		for _, err := range errs {
			if err != nil {
				d.log.Error(what, "error", err)
			}
		}
	}
	logAll("a record was set aside", d.sandboxes.Load()...)
	d.adoptCgroups()
	logAll("a record was set aside", d.containers.Load()...)
	logAll("network: reconciling failed", d.cni.Reconcile(ctx, d.sandboxes.Attachments()))
	logAll("containers: resuming failed", d.containers.Resume(ctx))
	logAll("sandboxes: resuming failed", d.sandboxes.Resume())
	logAll("NRI is off: no plugin can register", d.startNRI())
	logAll("logs: restoring the links failed", linkLogs(podLogs(d.cfg), d.containers.List("")))
	logAll("a record was set aside", d.objects.Load()...)
	logAll("a record was set aside", d.services.Load()...)
	logAll("a record was set aside", d.workloads.Load()...)
	logAll("a record was set aside", d.agent.Load()...)
	d.removeOrphans()
}

// answerTime is how long calls in flight may take once huskd stops. Then all are cut off, such as
// sessions and followed logs.
const answerTime = time.Second

func (d *daemon) serve(ctx context.Context, socket net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	end := func() {
		d.locks.markStopping()
		cancel()
	}
	defer end()
	server := grpc.NewServer(append(d.tracer.Options(),
		grpc.ChainUnaryInterceptor(d.metrics.Unary, api.Unary, cri.Unary(d.log, d.sandboxes, d.containers)),
		grpc.ChainStreamInterceptor(d.metrics.Stream, api.Stream),
		grpc.MaxRecvMsgSize(maxMessage))...)
	name := ""
	if r := d.handlers.Default; d.handlers.Missing == nil {
		name = r.Name + " " + r.Version
	}
	var err error
	if d.streams, err = d.newStreams(); err != nil {
		return err
	}
	api.Register(server, api.Config{
		Agent: d.agent, Workloads: d.workloads, Objects: d.objects, Containers: d.containers, Sandboxes: d.sandboxes, Images: d.images,
		Meter: d.meter, Network: d.network, Nodes: d.nodes.Controller(), Firewall: d.policy.Owner(), Services: &serviceapi.Server{Proxy: d.services, Agent: d.agent, Workloads: d.workloads}, Explainer: explainer(d), Debts: d.debts, RetryDebts: d.cni.Retry, Dial: d.streams.Dial,
		Doctor: d.examine, Runtime: name, Root: d.cfg.Root, State: d.cfg.State, Node: nodeName(d.cfg), Leave: leave(d),
		End: func() {
			d.shutdown.Store(true)
			// Before the answer: a "systemctl start" that comes after it must not find huskd active.
			d.service.Stopping(allStopped)
			end()
		},
	})
	registerSystem(d, server)
	huskv1.RegisterImagesServer(server, &imageapi.Server{Images: d.images, Changed: d.agent.ImagesChanged})
	registerDebugging(d, server)
	huskv1.RegisterFilesServer(server, &fileapi.Server{Agent: d.agent, Hidden: d.handlers.RuntimeSandbox})
	d.registerCRI(server)
	var running errgroup.Group
	if err := d.serveMetrics(ctx, &running); err != nil {
		return err
	}
	running.Go(d.streams.Serve)
	running.Go(func() error { return d.keeper.Run(ctx) })
	if err := runSources(ctx, d, &running); err != nil {
		return err
	}
	if err := d.membership.join(ctx, &running, d.keeper); err != nil {
		return err
	}
	d.nodes.Run(ctx, &running)
	running.Go(func() error { return d.displaced.Run(ctx) })
	running.Go(func() error { return awaitAddresses(ctx, d) })
	d.policy.Run(ctx, &running)
	running.Go(func() error { return d.workloads.Run(ctx) })
	d.services.Run(ctx, &running)
	d.names.run(ctx, &running)
	running.Go(func() error { return d.network.Watch(ctx) })
	running.Go(func() error { return d.releaseGone(ctx) })
	running.Go(func() error {
		d.stopWith(ctx, server, "huskd is stopping; pods keep running")
		d.streams.Close()
		return nil
	})
	delayShutdown(ctx, d, &running, end)
	runService(ctx, d, &running)
	err = server.Serve(rpc.Split(socket, d.servePlugin(ctx)))
	end()
	return errors.Join(err, running.Wait())
}

const allStopped = "huskd is stopping; all pods are stopped"

// stopWith waits for the end of ctx, and stops the server once it has answered the calls in flight.
func (d *daemon) stopWith(ctx context.Context, server *grpc.Server, notice string) {
	<-ctx.Done()
	d.locks.markStopping()
	if d.shutdown.Load() {
		notice = allStopped
	}
	d.log.Info(notice)
	d.service.Stopping(notice)
	cut := time.AfterFunc(answerTime, server.Stop)
	defer cut.Stop()
	server.GracefulStop()
}

// maxMessage is the largest message that huskd accepts, in bytes.
const maxMessage = 16 << 20

func (d *daemon) examine(context.Context) []*huskv1.Check {
	running := d.externalAttachments()
	if d.cfg.NetworkOnly {
		return doctor.Examine(doctor.Host{Network: d.network, Nodes: d.nodes.Controller(), Policy: d.policy.Problems(), Services: d.services.Problems(), Attachments: running, Config: d.cfg, Damaged: d.journal.Damaged()})
	}
	for _, st := range d.sandboxes.List() {
		if st.State == sandboxstate.Ready && !st.HostNetwork() {
			running = append(running, st.Attachment)
		}
	}
	declared := d.manifests.Load().Report()
	return doctor.Examine(doctor.Host{
		Facts: d.facts, Handlers: d.handlers.Handlers, Named: d.handlers.List()[1:], Network: d.network, Nodes: d.nodes.Controller(), Attachments: running, CNI: d.cni, Config: d.cfg,
		Policy: d.policy.Problems(), Services: d.services.Problems(), DNS: d.names.err(), Names: d.names.problems(), Tasks: d.tasks(), Room: room(d), Orphans: d.orphans, Damaged: d.journal.Damaged(), Manifests: declared.Problems, IgnoredManifests: declared.Ignored,
	})
}

// closeTime is how long work in flight may take to reach a safe point. Work that takes longer is
// cut off: the journal lets the next huskd complete it.
const closeTime = 5 * time.Second

// close closes everything that open and wire have opened. If no pod is left, it also removes
// everything of huskd from the kernel, and reports that.
func (d *daemon) close() (vacated bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if d.agent != nil {
			d.agent.Close()
			d.sandboxes.Close()
			d.containers.Close()
		}
	}()
	finished := true
	select {
	case <-done:
	case <-time.After(closeTime):
		finished = false
		d.log.Warn("huskd stops with work in flight; it continues at the next start")
	}
	if d.nri != nil {
		d.nri.Stop()
	}
	if d.devices != nil {
		d.devices.Close()
	}
	var errs []error
	if d.images != nil {
		errs = append(errs, d.images.Close())
	}
	if d.cni != nil {
		d.cni.Close()
		d.plugin.Close()
	}
	d.names.close()
	if d.network != nil {
		switch {
		case d.agent == nil: // open failed: only the network knows whether there are pods
			if err := d.network.Teardown(); !errdefs.IsFailedPrecondition(err) {
				errs = append(errs, err, d.nodes.Teardown(), d.policy.Teardown(), d.services.Teardown())
			}
		case finished:
			why := d.vacant()
			if vacated = why == nil; !vacated {
				if d.shutdown.Load() {
					d.log.Warn("the network of the node's pods stays", "because", why)
				}
				break
			}
			errs = append(errs, d.nodes.Teardown(), d.network.Teardown(), d.policy.Teardown(), d.services.Teardown(), netns.ReleaseDir(), d.cgroups.Remove(context.Background(), d.cgroups.Root()))
		}
		errs = append(errs, d.nodes.Close(), d.network.Close(), d.policy.Close(), d.services.Close())
	}
	if d.journal != nil {
		errs = append(errs, d.journal.Close())
	}
	d.server.close()
	d.tracer.Close()
	errs = append(errs, cgroup.CloseMonitors(d.monitors))
	if err := errors.Join(errs...); err != nil {
		d.log.Error("closing failed", "error", err)
	}
	return vacated
}

// vacant returns an error if something of a pod is left in the kernel. It waits for links that are
// being deleted. Cgroups without processes don't count: they go with huskd's own.
func (d *daemon) vacant() error {
	for _, st := range d.sandboxes.List() {
		if st.State != sandboxstate.Stopped {
			return fmt.Errorf("pod %s is %s", st.Ref(), st.State)
		}
	}
	if !detached(d.network) {
		return errors.New("a pod has an address")
	}
	pids, err := d.cgroups.PIDs(d.cgroups.Root())
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("cgroup %s has processes %v", d.cgroups.Root(), pids)
	}
	return err
}

// detached reports whether no pod is attached. It waits for links that are being deleted.
func detached(pods *network.Network) bool {
	if len(pods.External().List()) > 0 {
		return false
	}
	for end := time.Now().Add(closeTime); pods.Usage().Attached+len(pods.Usage().Debts) > 0; time.Sleep(reapTime) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// reapTime is about how long the kernel takes to delete a group of links.
const reapTime = 20 * time.Millisecond
