package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/huskd/husk/internal/cni/conf"
	"github.com/huskd/husk/internal/cni/process"
	"github.com/huskd/husk/internal/cni/result"
	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// The operations.
const (
	opAdd     = "ADD"
	opDel     = "DEL"
	opCheck   = "CHECK"
	opStatus  = "STATUS"
	opGC      = "GC"
	opVersion = "VERSION"
)

// markVar is the environment variable by which plugin processes are found after a crash.
const markVar = "HUSK_CNI"

// plugins runs the plugins of this node.
type plugins struct {
	instance  pod.Instance
	dirs      []string
	inProcess map[string]Plugin
	runner    process.Runner
	ran       func(Run) // may be nil
	runID     string    // unique to this huskd process
	closing   context.Context

	mu       sync.Mutex
	versions map[string]supported // by path
}

// call is one run of a plugin.
type call struct {
	list   *libcni.NetworkConfigList
	plugin *libcni.PluginConfig
	op     string
	args   invoke.Args
	inject map[string]any // into the plugin's configuration
	mark   string
}

// atLeast reports whether the version of list is at least since.
func atLeast(list *libcni.NetworkConfigList, since string) bool {
	ok, err := version.GreaterThanOrEqualTo(list.CNIVersion, since)
	return ok && err == nil
}

// Run describes one run of a plugin.
type Run struct {
	Network, Plugin string
	Op              string // ADD, DEL, …
	Took            time.Duration
	Err             error // if it failed
}

// do runs a plugin. Its error names network, plugin and operation.
func (p *plugins) do(ctx context.Context, c call) ([]byte, error) {
	r := Run{Network: c.list.Name, Plugin: c.plugin.Network.Type, Op: c.op}
	ctx, span := trace.Start(ctx, "cni/"+r.Op, trace.Network, r.Network, trace.Plugin, r.Plugin, trace.Sandbox, c.args.ContainerID)
	began := time.Now()
	out, err := p.exec(ctx, c)
	if err != nil {
		err = fmt.Errorf("network %s: plugin %s: %s: %w", r.Network, r.Plugin, r.Op, err)
	}
	span.End(err)
	if r.Took, r.Err = time.Since(began), err; p.ran != nil {
		p.ran(r)
	}
	return out, err
}

func (p *plugins) exec(ctx context.Context, c call) ([]byte, error) {
	stdin, err := c.stdin()
	if err != nil {
		return nil, err
	}
	c.args.Command = c.op
	c.args.Path = strings.Join(p.path(c.plugin.Network.Type), string(os.PathListSeparator))
	if run, ok := p.inProcess[c.plugin.Network.Type]; ok {
		return run(ctx, c.getenv(), stdin)
	}
	path, err := p.lookup(c.plugin.Network.Type)
	if err != nil {
		return nil, err
	}
	return p.runner.Run(ctx, path, stdin, append(c.args.AsEnv(), markVar+"="+cmp.Or(c.mark, p.queryMark())))
}

// getenv returns a function that looks up variables of the run's environment.
func (c call) getenv() func(string) string {
	vars := map[string]string{}
	for _, kv := range c.args.AsEnv() {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	return func(name string) string { return vars[name] }
}

// path returns the CNI_PATH for a plugin: the vendor's directory, then dirs.
func (p *plugins) path(plugin string) []string {
	return append([]string{filepath.Join("/opt", plugin, "bin")}, p.dirs...)
}

// lookup returns the path of a plugin's program.
func (p *plugins) lookup(plugin string) (string, error) {
	path, err := invoke.FindInPath(plugin, p.path(plugin))
	if err != nil {
		return "", fmt.Errorf("the program %s is in none of %s", plugin, strings.Join(p.dirs, ", "))
	}
	return path, nil
}

// stdin returns the plugin's configuration as passed to it. Unknown fields are kept.
func (c call) stdin() ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(c.plugin.Bytes, &fields); err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	delete(fields, "capabilities") // only for the runtime
	set := map[string]any{"name": c.list.Name, "cniVersion": c.list.CNIVersion}
	for k, v := range c.inject {
		set[k] = v
	}
	for k, v := range set {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		fields[k] = data
	}
	return json.Marshal(fields)
}

// call returns the run of a plugin for an attachment, with its capability arguments and
// the previous result, if there is one.
func (p *plugins) call(r *record, list *libcni.NetworkConfigList, plugin *libcni.PluginConfig, op string) call {
	a := r.Attachment
	c := call{
		list: list, plugin: plugin, op: op, inject: map[string]any{},
		args: invoke.Args{ContainerID: a.Sandbox, NetNS: a.Netns, IfName: a.IfName, PluginArgs: r.Args},
		mark: p.markOf(r),
	}
	runtime := map[string]json.RawMessage{}
	for name, has := range plugin.Network.Capabilities {
		if value, ok := r.Caps[name]; ok && has {
			runtime[name] = value
		}
	}
	if len(runtime) > 0 {
		c.inject["runtimeConfig"] = runtime
	}
	if len(r.Result) > 0 {
		c.inject["prevResult"] = r.Result
	}
	return c
}

// queryMark is the mark of runs that are not for an attachment. It is unique to this huskd
// process, because such runs start before Reconcile kills those of an earlier one.
func (p *plugins) queryMark() string { return p.queryMarks() + p.runID }

// queryMarks is the prefix of the query marks of all huskd processes of this instance.
func (p *plugins) queryMarks() string { return string(p.instance) + "/ask/" }

func (p *plugins) markOf(r *record) string { return string(p.instance) + "/" + r.key() }

// add runs ADD of all plugins and saves r with each result.
func (p *plugins) add(ctx context.Context, r *record, save func(record) error) error {
	list := r.list()
	for i, plugin := range list.Plugins {
		crashpoint.Hit(fmt.Sprintf("cni.add.%d.begin", i))
		out, err := p.do(ctx, p.call(r, list, plugin, opAdd))
		crashpoint.Hit(fmt.Sprintf("cni.add.%d.end", i))
		if err != nil {
			return err
		}
		parsed, err := result.Parse(out, list.CNIVersion)
		if err == nil {
			r.Result = parsed
			err = save(*r)
		}
		if err != nil {
			return fmt.Errorf("network %s: plugin %s: ADD: %w", list.Name, plugin.Network.Type, err)
		}
	}
	a, err := result.Attached(r.Result, r.Attachment.IfName, r.Attachment.IfName == firstLink)
	if err != nil {
		last := list.Plugins[len(list.Plugins)-1].Network.Type
		return fmt.Errorf("network %s: plugin %s: ADD: %w", list.Name, last, err)
	}
	a.Network = list.Name
	r.Attached = a
	return nil
}

// del runs DEL of all plugins in reverse order, even if some fail. r's namespace may be
// empty.
func (p *plugins) del(ctx context.Context, r *record) error {
	list := r.list()
	undo := *r
	if !atLeast(list, "0.4.0") {
		undo.Result = nil
	}
	var errs []error
	for i, plugin := range slices.Backward(list.Plugins) {
		crashpoint.Hit(fmt.Sprintf("cni.del.%d.begin", i))
		_, err := p.do(ctx, p.call(&undo, list, plugin, opDel))
		crashpoint.Hit(fmt.Sprintf("cni.del.%d.end", i))
		var cniErr *types.Error
		if errors.As(err, &cniErr) && cniErr.Code == types.ErrUnknownContainer {
			err = nil // nothing is left to delete
		}
		errs = append(errs, err)
	}
	return joinLine(errs)
}

// joinLine joins errors into one line.
func joinLine(errs []error) error {
	var out error
	for _, err := range errs {
		switch {
		case err == nil:
		case out == nil:
			out = err
		default:
			out = fmt.Errorf("%w; %w", out, err)
		}
	}
	return out
}

// check runs CHECK of all plugins, if the network's version has it.
func (p *plugins) check(ctx context.Context, r *record) error {
	list := r.list()
	if list.DisableCheck || !atLeast(list, "0.4.0") {
		return nil
	}
	for _, plugin := range list.Plugins {
		if _, err := p.do(ctx, p.call(r, list, plugin, opCheck)); err != nil {
			return err
		}
	}
	return nil
}

// status runs STATUS of all plugins, if the network's version has it.
func (p *plugins) status(ctx context.Context, list *libcni.NetworkConfigList) error {
	if !atLeast(list, "1.1.0") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	for _, plugin := range list.Plugins {
		if _, err := p.do(ctx, call{list: list, plugin: plugin, op: opStatus}); err != nil {
			return err
		}
	}
	return nil
}

// queryTimeout bounds STATUS and VERSION, and killing processes at start.
const queryTimeout = 10 * time.Second

// supported caches the versions that a plugin supports, until its program changes.
type supported struct {
	modified time.Time
	size     int64
	versions []string
	err      error
	until    time.Time // err is cached until then
}

// versionRetry is how long a failed VERSION is cached.
const versionRetry = time.Minute

// usable returns an error if a network can't be used now: a plugin is missing, or its
// plugins support no common version of the configuration. Otherwise it sets the
// highest common version in list.
func (p *plugins) usable(list *libcni.NetworkConfigList) error {
	versions := conf.Versions(list)
	for _, plugin := range list.Plugins {
		s := p.supports(list, plugin)
		if s.err != nil {
			return s.err
		}
		common := slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return !slices.Contains(s.versions, v) })
		if len(common) == 0 {
			return fmt.Errorf("plugin %s doesn't support cniVersion %s, only %s", plugin.Network.Type, strings.Join(versions, ", "), strings.Join(s.versions, ", "))
		}
		versions = common
	}
	list.CNIVersion = versions[0]
	return nil
}

// supports returns the versions that a plugin supports, from the cache if possible.
func (p *plugins) supports(list *libcni.NetworkConfigList, plugin *libcni.PluginConfig) supported {
	var s supported
	path := plugin.Network.Type
	if _, ok := p.inProcess[path]; !ok {
		var err error
		if path, err = p.lookup(path); err != nil {
			return supported{err: err}
		}
		info, err := os.Stat(path)
		if err != nil {
			return supported{err: err}
		}
		s.modified, s.size = info.ModTime(), info.Size()
	}
	p.mu.Lock()
	known, ok := p.versions[path]
	p.mu.Unlock()
	if ok && known.modified.Equal(s.modified) && known.size == s.size && (known.err == nil || time.Now().Before(known.until)) {
		return known
	}
	s.versions, s.err = p.version(list, plugin)
	s.until = time.Now().Add(versionRetry)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.versions[path] = s
	return s
}

// version runs VERSION of a plugin.
func (p *plugins) version(list *libcni.NetworkConfigList, plugin *libcni.PluginConfig) ([]string, error) {
	ctx, cancel := context.WithTimeout(p.closing, queryTimeout)
	defer cancel()
	c := call{list: list, plugin: plugin, op: opVersion}
	// The oldest plugins require these even for VERSION.
	c.args.NetNS, c.args.IfName, c.args.ContainerID = "none", "none", "none"
	out, err := p.do(ctx, c)
	var cniErr *types.Error
	if errors.As(err, &cniErr) && cniErr.Msg == "unknown CNI_COMMAND: VERSION" {
		return []string{"0.1.0"}, nil // VERSION came with 0.2.0
	}
	if err != nil {
		return nil, err
	}
	info, err := (&version.PluginDecoder{}).Decode(out)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: VERSION: its answer is malformed: %w", plugin.Network.Type, err)
	}
	return info.SupportedVersions(), nil
}
