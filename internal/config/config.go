// Package config parses huskd's configuration: flags, and a TOML file with the same keys. Each
// option is defined once, in Config, from which the flags, the file's keys and the reference page
// are derived.
package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/version"
)

// DefaultFile is read if it exists and --config names no other file.
const DefaultFile = "/etc/husk/huskd.toml"

const defaultRoot = "/var/lib/husk"

// Config is the configuration of huskd. The tag `key` names the flag and the key in the file,
// `help` documents it, and New returns the defaults.
type Config struct {
	Root   string `key:"root" help:"directory for state that survives a reboot: images, writable layers, the journal"`
	State  string `key:"state" help:"directory for state that a reboot discards: namespaces, sockets, runtime state"`
	Listen string `key:"listen" help:"socket to listen on, unix:///PATH"`
	Kubelet
	Sources
	Cluster
	Images
	PodNetwork
	Plugins
	Containers
	Disk
	Shutdown
	Metrics   string `key:"metrics-listen" help:"address to serve Prometheus metrics on, such as 127.0.0.1:9477, at /metrics; empty to disable"`
	LogLevel  string `key:"log-level" help:"minimum level of log lines: debug, info, warn or error"`
	LogFormat string `key:"log-format" help:"format of log lines: text or json"`
	// Runtimes can only be set in the file, each in a table [runtimes.NAME].
	Runtimes map[string]Runtime
	// Tracing can only be set in the file.
	Tracing Tracing
}

// Plugins says where the plugins for CNI, NRI and registry logins are.
type Plugins struct {
	CNIConf   string   `key:"cni-conf-dir" help:"directory of CNI network configurations, which replace the built-in network if there are any; empty to use only the built-in network"`
	CNIBin    []string `key:"cni-bin-dir" help:"directories of CNI plugins, searched in order after /opt/TYPE/bin"`
	CNIMax    int      `key:"cni-max-networks" help:"number of networks in cni-conf-dir that a pod is attached to, in the order of the file names"`
	NRISocket string   `key:"nri-socket" help:"socket where plugins of the Node Resource Interface register; empty to disable NRI"`
	NRIDir    string   `key:"nri-plugin-dir" help:"directory of NRI plugins that huskd starts, each named NN-NAME"`
	NRINeeded []string `key:"nri-required-plugins" help:"names of NRI plugins that must be registered before containers are created"`
	LoginConf string   `key:"image-credential-provider-config" help:"CredentialProviderConfig of the kubelet, or a directory of them, with the programs that know registry logins; empty for none"`
	LoginBin  string   `key:"image-credential-provider-bin-dir" help:"directory of these programs"`
}

// New returns the default configuration.
func New() Config {
	return Config{
		Root:     defaultRoot,
		State:    "/run/husk",
		Listen:   "unix:///run/husk/husk.sock",
		Sources:  Sources{WebSeconds: 20},
		Disk:     kubeletDisk,
		Shutdown: Shutdown{Grace: 30, GraceCritical: 10},
		Cluster:  Cluster{NodeListen: ":10250", NodeHealthz: "127.0.0.1:10248", NodeTLSMin: "VersionTLS12", ClusterDomain: "cluster.local", ResolvConf: "/etc/resolv.conf", Capacity: Capacity{SwapBehavior: noSwap}},
		Images:   Images{CertsDir: "/etc/husk/certs.d", ShortNames: "docker.io", ImageVerify: access.Modes[0]},
		PodNetwork: PodNetwork{
			Network: "ptp", Subnets: []string{"10.201.0.0/16", "fd68:7573:6b00::/64"}, Masquerade: true, ReplaceDisplaced: true,
			Policy: PolicyAuto, Proxy: ProxyAuto, ServiceSubnets: []string{"10.203.0.0/16", "fd68:7573:6b80::/112"}, DNS: DNSAuto, Store: StoreNone, Backend: "auto", BlockLength: 24, Etcd: Etcd{EtcdCluster: "default"}, BGP: BGP{AS: 64512},
		},
		Plugins: Plugins{
			CNIConf:   "/etc/cni/net.d",
			CNIBin:    []string{"/opt/cni/bin", "/usr/lib/cni"},
			CNIMax:    1,
			NRISocket: "/var/run/nri/nri.sock",
			NRIDir:    "/opt/nri/plugins",
		},
		Containers: Containers{CgroupDriver: Cgroupfs, DefaultCapabilities: spec.DefaultCapabilities(), SeccompDefault: true, PidsLimit: 4096, PodPidsLimit: 4096},
		LogLevel:   "info",
		LogFormat:  "text",
		Tracing:    Tracing{Sampling: 1},
	}
}

// option is a field of a Config or of one of its tables.
type option struct {
	key, help string
	value     reflect.Value
}

// options returns the fields of c that have a key. Setting their values changes c.
func options[T Config | Runtime | Tracing](c *T) []option {
	return optionsOf(reflect.ValueOf(c).Elem())
}

func optionsOf(v reflect.Value) (list []option) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if key, ok := field.Tag.Lookup("key"); ok {
			list = append(list, option{key, field.Tag.Get("help"), v.Field(i)})
		} else if field.Anonymous {
			list = append(list, optionsOf(v.Field(i))...)
		}
	}
	return list
}

// Parse parses the flags, and the file that --config names or DefaultFile. Flags override the file,
// which overrides the kubelet's configuration that either names, and that the defaults. If help or
// the version was requested, Parse prints it to out and returns pflag.ErrHelp. The error of a
// kubelet's configuration that doesn't exist is ErrNotYet.
func Parse(args []string, out io.Writer) (Config, error) {
	cfg := New()
	fromFlags := cfg
	flags := flagsOf(&fromFlags)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, About, "\n\nUsage: huskd [flags]\n\n", flags.FlagUsages())
	}
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return cfg, err
	} else if err != nil {
		return cfg, fmt.Errorf("%w: see huskd --help", err)
	}
	if flags.Changed(versionFlag) {
		fmt.Fprintln(out, "huskd", version.Version)
		return cfg, pflag.ErrHelp
	}
	if flags.NArg() > 0 {
		return cfg, fmt.Errorf("%q: huskd takes only flags; pods are run with husk run", flags.Arg(0))
	}
	path, raw, err := load(flags.Lookup(fileFlag).Value.String())
	if err != nil {
		return cfg, err
	}
	given := options(&fromFlags)
	override := func(c *Config) error {
		errs := apply(c, path, raw)
		for i, o := range options(c) {
			if flags.Changed(o.key) {
				o.value.Set(given[i].value)
			}
		}
		return errors.Join(errs...)
	}
	named := New()
	if err := override(&named); err != nil {
		return cfg, err
	}
	cfg.Kubelet = named.Kubelet
	if err := translate(&cfg, func(key string) bool { return raw[key] != nil || flags.Changed(key) }); err != nil {
		return cfg, err
	}
	_ = override(&cfg) // what failed, failed with named
	return cfg, cfg.check()
}

// About says in one sentence what huskd is.
const About = "huskd runs pods on this node: from manifests, for a cluster, and for a kubelet through CRI."

// The flags that aren't options: the one that names the file, and the one that asks for the
// version.
const (
	fileFlag    = "config"
	versionFlag = "version"
)

// Flags returns huskd's flags for its documentation.
func Flags() *pflag.FlagSet {
	cfg := New()
	return flagsOf(&cfg)
}

// flagsOf returns the flags that set the options of cfg, and those that aren't options.
func flagsOf(cfg *Config) *pflag.FlagSet {
	flags := pflag.NewFlagSet("huskd", pflag.ContinueOnError)
	flags.SortFlags = false
	for _, o := range options(cfg) {
		switch p := o.value.Addr().Interface().(type) {
		case *string:
			flags.StringVar(p, o.key, *p, o.help)
		case *[]string:
			flags.StringSliceVar(p, o.key, *p, o.help)
		case *bool:
			flags.BoolVar(p, o.key, *p, o.help)
		case *int:
			flags.IntVar(p, o.key, *p, o.help)
		case *Amounts:
			flags.Var(p, o.key, o.help)
		}
	}
	flags.String(fileFlag, "", "TOML file with these settings (default "+DefaultFile+", if it exists)")
	flags.Bool(versionFlag, false, "print the version")
	return flags
}

// load returns the path of the file and its content.
func load(file string) (path string, raw map[string]any, err error) {
	path = file
	if path == "" {
		path = DefaultFile
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && file == "" {
		return path, nil, nil
	}
	if err != nil {
		return path, nil, fmt.Errorf("configuration: %w", err)
	}
	if err := toml.Unmarshal(data, &raw); err != nil {
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			row, col := bad.Position()
			return path, nil, fmt.Errorf("%s:%d:%d: %s", path, row, col, strings.TrimPrefix(bad.Error(), "toml: "))
		}
		return path, nil, fmt.Errorf("%s: %w", path, err)
	}
	return path, raw, nil
}

// apply sets the keys of a file and returns all errors.
func apply(c *Config, path string, raw map[string]any) []error {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	keys := maps.Clone(raw)
	if v, ok := keys[runtimesKey]; ok {
		handlers, err := runtimes(v)
		c.Runtimes = handlers
		add(err)
		delete(keys, runtimesKey)
	}
	if v, ok := keys[tracingKey]; ok {
		add(tracing(v, &c.Tracing))
		delete(keys, tracingKey)
	}
	for _, err := range fill(options(c), keys) {
		add(err)
	}
	return errs
}

// fill sets the options from the keys of a table and returns all errors.
func fill(options []option, table map[string]any) []error {
	var errs []error
	known := map[string]bool{}
	for _, o := range options {
		known[o.key] = true
		if v, ok := table[o.key]; ok {
			if err := o.set(v); err != nil {
				errs = append(errs, err)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if !known[key] {
			errs = append(errs, fmt.Errorf("%s: unknown key: see docs/reference/config.md", key))
		}
	}
	return errs
}

func (o option) set(v any) error {
	switch p := o.value.Addr().Interface().(type) {
	case *string:
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("%s: must be a string", o.key)
		}
		*p = s
	case *bool:
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("%s: must be true or false", o.key)
		}
		*p = b
	case *int:
		n, ok := v.(int64)
		if !ok {
			return fmt.Errorf("%s: must be a number", o.key)
		}
		*p = int(n)
	case *float64:
		switch n := v.(type) {
		case float64:
			*p = n
		case int64:
			*p = float64(n)
		default:
			return fmt.Errorf("%s: must be a number", o.key)
		}
	case *Amounts:
		table, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: must be a table of strings", o.key)
		}
		*p = Amounts{}
		for name, e := range table {
			if (*p)[name], ok = e.(string); !ok {
				return fmt.Errorf("%s: %s must be a string", o.key, name)
			}
		}
	case *[]string:
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s: must be a list of strings", o.key)
		}
		*p = nil
		for _, e := range list {
			s, ok := e.(string)
			if !ok {
				return fmt.Errorf("%s: must be a list of strings", o.key)
			}
			*p = append(*p, s)
		}
	}
	return nil
}

// check returns all invalid values, sorted by key, and cleans paths.
func (c *Config) check() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		err := fmt.Errorf("%s: "+format, append([]any{key}, args...)...)
		if origin := c.Origin(key); origin != "" {
			err = fmt.Errorf("%w (%s)", err, origin)
		}
		errs = append(errs, err)
	}
	for key, path := range map[string]*string{"root": &c.Root, "state": &c.State, "certs-dir": &c.CertsDir, "manifests": &c.Manifests, "cni-conf-dir": &c.CNIConf,
		"nri-socket": &c.NRISocket, "nri-plugin-dir": &c.NRIDir} {
		if *path == "" && (key == "manifests" || key == "cni-conf-dir" || key == "nri-socket") {
			continue
		}
		if !filepath.IsAbs(*path) {
			bad(key, "%q is not an absolute path", *path)
		}
		*path = filepath.Clean(*path)
	}
	c.setPodLogs(bad)
	c.setKubeletDir(bad)
	if c.Root == c.State {
		bad("state", "%s is also the root directory: use another", c.State)
	}
	if path, ok := strings.CutPrefix(c.Listen, "unix://"); !ok || !filepath.IsAbs(path) {
		bad("listen", "%q is not of the form unix:///path", c.Listen)
	}
	oneOf := func(key, value string, of ...string) {
		if !slices.Contains(of, value) {
			bad(key, "%q is not one of %s", value, strings.Join(of, ", "))
		}
	}
	for i, dir := range c.CNIBin {
		if !filepath.IsAbs(dir) {
			bad("cni-bin-dir", "%q is not an absolute path", dir)
		}
		c.CNIBin[i] = filepath.Clean(dir)
	}
	if (c.LoginConf == "") != (c.LoginBin == "") {
		bad("image-credential-provider-config", "set both it and image-credential-provider-bin-dir, or neither")
	}
	for key, path := range map[string]string{"image-credential-provider-config": c.LoginConf, "image-credential-provider-bin-dir": c.LoginBin} {
		if path != "" && !filepath.IsAbs(path) {
			bad(key, "%q is not an absolute path", path)
		}
	}
	c.checkSources(bad)
	c.checkCluster(bad)
	c.MaxPods = maxPods(c.MaxPods, c.Kubeconfig)
	c.checkDisk(bad)
	c.Images.check(bad)
	c.Shutdown.check(bad)
	if c.CNIMax < 1 {
		bad("cni-max-networks", "%d: must be at least 1", c.CNIMax)
	}
	c.checkPodNetwork(c.Kubeconfig, bad, oneOf)
	if c.NetworkOnly {
		c.checkNetworkOnly(bad)
	}
	if _, _, err := net.SplitHostPort(c.Metrics); c.Metrics != "" && err != nil {
		bad("metrics-listen", "%q is not of the form 127.0.0.1:9477", c.Metrics)
	}
	oneOf("log-level", c.LogLevel, "debug", "info", "warn", "error")
	oneOf("log-format", c.LogFormat, "text", "json")
	for name, r := range c.Runtimes {
		if err := r.check(name); err != nil {
			bad(runtimesKey+"."+name, "%w", err)
		}
	}
	c.Containers.check(bad)
	if err := c.Tracing.check(); err != nil {
		bad(tracingKey, "%w", err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// Values returns the values of all options that are flags, by name. The secrets that an option may
// hold are masked.
func (c Config) Values() map[string]string {
	out := map[string]string{}
	for _, o := range options(&c) {
		out[o.key] = fmt.Sprint(o.value.Interface())
		if text, ok := o.value.Addr().Interface().(fmt.Stringer); ok {
			out[o.key] = text.String()
		}
	}
	if len(c.WebHeader) > 0 {
		out["manifest-url-header"] = "CLASSIFIED"
	}
	return out
}

// Reference returns the reference page of the options in Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString("# huskd configuration\n\nGenerated from `internal/config`. Each key can be given as a flag, `--key=value`, or in the TOML\nfile that `--config` names (default `" + DefaultFile + "`, if it exists). Flags override the file, and both override\nthe [configuration of a kubelet](kubelet-config.md) that `kubelet-config` names.\n\n" +
		"On SIGHUP (`systemctl reload huskd`) huskd reads the file again. It applies `log-level`, and logs which other\nkeys have changed and need a restart. Pods keep running meanwhile. A file with a mistake changes nothing.\n\n")
	cfg := New()
	table(&b, options(&cfg))
	b.WriteString(runtimesReference)
	handler := newRuntime()
	table(&b, options(&handler))
	b.WriteString(tracingReference)
	table(&b, options(&cfg.Tracing))
	return b.String()
}

func table(b *strings.Builder, options []option) {
	b.WriteString("| key | default | meaning |\n|---|---|---|\n")
	for _, o := range options {
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", o.key, shown(o.value), o.help)
	}
}

func shown(v reflect.Value) string {
	switch v := v.Interface().(type) {
	case string:
		if v == "" {
			return ""
		}
		return "`" + v + "`"
	case []string:
		if len(v) == 0 {
			return ""
		}
		return "`[\"" + strings.Join(v, "\", \"") + "\"]`"
	case Amounts:
		if len(v) == 0 {
			return ""
		}
		return "`" + (&v).String() + "`"
	default:
		return fmt.Sprintf("`%v`", v)
	}
}
