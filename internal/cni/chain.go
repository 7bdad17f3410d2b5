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

// mark is the variable by which a plugin's processes are found after a crash.
const mark = "HUSK_CNI"

// plugins runs the plugins of this node.
type plugins struct {
	instance pod.Instance
	dirs     []string
	inside   map[string]Plugin // those of this process
	run      process.Runner
	ran      func(Run) // may be nil
	life     string    // differs from that of any huskd before
	closing  context.Context

	mu       sync.Mutex
	versions map[string]supported // by path
}

// call is one run of one plugin.
type call struct {
	list   *libcni.NetworkConfigList
	plugin *libcni.PluginConfig
	op     string
	args   invoke.Args
	inject map[string]any // into the plugin's configuration
	mark   string
}

// speaks says whether list is of that version of CNI or a later one.
func speaks(list *libcni.NetworkConfigList, since string) bool {
	ok, err := version.GreaterThanOrEqualTo(list.CNIVersion, since)
	return ok && err == nil
}

// Run is one run of a plugin.
type Run struct {
	Network, Plugin string
	Op              string // ADD, DEL, …
	Took            time.Duration
	Err             error // if it failed
}

// do runs the plugin. Its error names network, plugin and operation.
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
	if run, ok := p.inside[c.plugin.Network.Type]; ok {
		return run(ctx, c.getenv(), stdin)
	}
	path, err := p.lookup(c.plugin.Network.Type)
	if err != nil {
		return nil, err
	}
	return p.run.Run(ctx, path, stdin, append(c.args.AsEnv(), mark+"="+cmp.Or(c.mark, p.askMark())))
}

// getenv looks up a variable of the run's environment.
func (c call) getenv() func(string) string {
	vars := map[string]string{}
	for _, kv := range c.args.AsEnv() {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	return func(name string) string { return vars[name] }
}

// path is CNI_PATH for a plugin: where vendors put it goes before.
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

// stdin returns the plugin's configuration as it is given to it. What isn't
// known here is passed on as it is.
func (c call) stdin() ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(c.plugin.Bytes, &fields); err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	delete(fields, "capabilities") // the runtime's business
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

// call returns the run of a plugin for an attachment, which needs its
// capabilities and, for all but the first ADD, a previous result.
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

// askMark marks what is asked of a plugin for no attachment.
// Each huskd has one of its own, as it asks before it looks for what another
// has left running.
func (p *plugins) askMark() string { return p.askMarks() + p.life }

func (p *plugins) askMarks() string { return string(p.instance) + "/ask/" }

func (p *plugins) markOf(r *record) string { return string(p.instance) + "/" + r.key() }

// add runs ADD of all plugins and has r saved with each result.
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

// del runs DEL of all plugins, the last first, each whatever became of the
// others. r's namespace may be none.
func (p *plugins) del(ctx context.Context, r *record) error {
	list := r.list()
	undo := *r
	if !speaks(list, "0.4.0") {
		undo.Result = nil
	}
	var errs []error
	for i, plugin := range slices.Backward(list.Plugins) {
		crashpoint.Hit(fmt.Sprintf("cni.del.%d.begin", i))
		_, err := p.do(ctx, p.call(&undo, list, plugin, opDel))
		crashpoint.Hit(fmt.Sprintf("cni.del.%d.end", i))
		var told *types.Error
		if errors.As(err, &told) && told.Code == types.ErrUnknownContainer {
			err = nil // there is nothing of it
		}
		errs = append(errs, err)
	}
	return lines(errs)
}

// lines joins errors in one line.
func lines(errs []error) error {
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

// check runs CHECK of all plugins, if the network has it.
func (p *plugins) check(ctx context.Context, r *record) error {
	list := r.list()
	if list.DisableCheck || !speaks(list, "0.4.0") {
		return nil
	}
	for _, plugin := range list.Plugins {
		if _, err := p.do(ctx, p.call(r, list, plugin, opCheck)); err != nil {
			return err
		}
	}
	return nil
}

// status runs STATUS of all plugins, if the network has it.
func (p *plugins) status(ctx context.Context, list *libcni.NetworkConfigList) error {
	if !speaks(list, "1.1.0") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for _, plugin := range list.Plugins {
		if _, err := p.do(ctx, call{list: list, plugin: plugin, op: opStatus}); err != nil {
			return err
		}
	}
	return nil
}

// askTime bounds what only asks.
const askTime = 10 * time.Second

// supported is what a program said of itself, as long as it is that program.
type supported struct {
	modified time.Time
	size     int64
	versions []string
	err      error
	until    time.Time // of an err, which may pass
}

// doubtTime is how long a program that couldn't tell its versions isn't asked
// again.
const doubtTime = time.Minute

// usable says why a network can't be used now: a plugin is missing, or they
// speak no version that the configuration is for. It gives list the highest
// that all of them do.
func (p *plugins) usable(list *libcni.NetworkConfigList) error {
	versions := conf.Versions(list)
	for _, plugin := range list.Plugins {
		s := p.supports(list, plugin)
		if s.err != nil {
			return s.err
		}
		common := slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return !slices.Contains(s.versions, v) })
		if len(common) == 0 {
			return fmt.Errorf("plugin %s doesn't speak cniVersion %s, only %s", plugin.Network.Type, strings.Join(versions, ", "), strings.Join(s.versions, ", "))
		}
		versions = common
	}
	list.CNIVersion = versions[0]
	return nil
}

func (p *plugins) supports(list *libcni.NetworkConfigList, plugin *libcni.PluginConfig) supported {
	var s supported
	path := plugin.Network.Type
	if _, ok := p.inside[path]; !ok {
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
	s.until = time.Now().Add(doubtTime)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.versions[path] = s
	return s
}

// version asks a plugin which versions it speaks.
func (p *plugins) version(list *libcni.NetworkConfigList, plugin *libcni.PluginConfig) ([]string, error) {
	ctx, cancel := context.WithTimeout(p.closing, askTime)
	defer cancel()
	c := call{list: list, plugin: plugin, op: opVersion}
	// The oldest plugins want these whatever they are asked.
	c.args.NetNS, c.args.IfName, c.args.ContainerID = "none", "none", "none"
	out, err := p.do(ctx, c)
	var told *types.Error
	if errors.As(err, &told) && told.Msg == "unknown CNI_COMMAND: VERSION" {
		return []string{"0.1.0"}, nil // before 0.2.0 there was no VERSION
	}
	if err != nil {
		return nil, err
	}
	info, err := (&version.PluginDecoder{}).Decode(out)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: VERSION: its answer is none: %w", plugin.Network.Type, err)
	}
	return info.SupportedVersions(), nil
}
