package kubeletconfig

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/document"
)

// Translation is a kubelet's configuration in huskd's terms.
type Translation struct {
	// Files are the files that were read, in order. The first is the configuration, the others are
	// drop-ins.
	Files []string
	// Values are the values of huskd's keys, in TOML's types: string, bool, int64, float64, []any of
	// strings, and map[string]any for tables.
	Values map[string]any
	// Origin says for each key which fields it comes from, and where these are: FIELD in FILE:LINE.
	Origin map[string]string
	// Missing are the fields that ask for what huskd doesn't have.
	Missing []Note
	// Silent are the fields that huskd needs not to follow.
	Silent []Note
}

// Note is about one field.
type Note struct {
	Field string
	// Value is the field's value in JSON, cut to what a line can have.
	Value string
	At    string // FILE:LINE
	// Text says why huskd doesn't follow it, and what to do.
	Text string
}

// String returns the note as one line.
func (n Note) String() string { return fmt.Sprintf("%s: %s: %s: %s", n.At, n.Field, n.Value, n.Text) }

// Read reads the file and, unless dir is empty, the drop-ins in it, and translates them. Paths in
// the file are relative to its directory, as for a kubelet. An error has a line for each mistake.
// It is fs.ErrNotExist if the file or dir doesn't exist.
func Read(file, dir string) (*Translation, error) {
	absolute, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	read, err := read(absolute, dir)
	if err != nil {
		return nil, err
	}
	t := &translator{files: read, out: &Translation{Files: read.names, Values: map[string]any{}, Origin: map[string]string{}}}
	for i := range fieldList {
		t.field(&fieldList[i])
	}
	t.listen()
	t.evictions()
	t.reservations()
	t.pods()
	t.shutdown()
	t.tracing()
	return t.out, t.err()
}

type translator struct {
	*files
	out     *Translation
	refused []refusal
}

// refusal is a field that huskd refuses, or whose value it can't take.
type refusal struct {
	v       *value
	problem manifest.Problem
}

func (t *translator) refuse(v *value, field, format string, args ...any) {
	t.refused = append(t.refused, refusal{v, manifest.Problem{Line: v.Line, Path: field, Text: fmt.Sprintf(format, args...)}})
}

// err returns the refused fields by file, or nil.
func (t *translator) err() error {
	if len(t.refused) == 0 {
		return nil
	}
	var lines []string
	for _, name := range t.names {
		e := &manifest.Error{File: name}
		for _, r := range t.refused {
			if r.v.file == name {
				e.Problems = append(e.Problems, r.problem)
			}
		}
		if len(e.Problems) > 0 {
			lines = append(lines, e.Error())
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// set returns the value of a field, or nil if the files don't set it.
func (t *translator) set(path string) *value {
	v := t.merged.get(path)
	if v == nil || v.Kind == document.Null {
		return nil
	}
	if f := fieldAt(path); !f.zero && (isZero(v) || (f.kind == duration || f.kind == nanoseconds) && durationOf(v) == 0) {
		return nil
	}
	return v
}

func fieldAt(path string) *field {
	return &fieldList[slices.IndexFunc(fieldList, func(f field) bool { return f.path == path })]
}

// isZero reports whether a value is the zero value of its type. A map isn't if it has any key.
func isZero(v *value) bool {
	if v.fields != nil {
		return len(v.fields) == 0
	}
	return v.IsZero()
}

func durationOf(v *value) time.Duration {
	if v.Kind == document.Number {
		n, _ := strconv.ParseInt(v.Text, 10, 64)
		return time.Duration(n)
	}
	d, _ := time.ParseDuration(v.Text) // it was checked
	return d
}

func integerOf(v *value) int64 {
	n, _ := strconv.ParseInt(v.Text, 10, 64) // it was checked
	return n
}

// field does what the list of fields says of those that are translated by themselves, and notes
// those that aren't.
func (t *translator) field(f *field) {
	if f.fate == inner {
		return
	}
	v := t.set(f.path)
	switch {
	case v == nil:
	case f.fate == translated:
		if convert := conversions[f.path]; convert != nil {
			convert(t, f, v)
		}
	case f.fate == silent:
		t.out.Silent = append(t.out.Silent, t.note(f.path, v, f.why))
	case f.path == "featureGates":
		t.gates(f, v)
	case f.fits != nil && fits(f, v):
	case f.fate == refused:
		t.refuse(v, f.path, "%s: %s", t.shown(v), f.why)
	default:
		t.miss(f.path, v, "%s", f.why)
	}
}

func (t *translator) note(path string, v *value, why string) Note {
	return Note{Field: printable(path), Value: t.shown(v), At: printable(v.at()), Text: why}
}

func (t *translator) miss(path string, v *value, format string, args ...any) {
	t.out.Missing = append(t.out.Missing, t.note(path, v, fmt.Sprintf(format, args...)))
}

// shown returns a merged value as it appears in notes.
func (t *translator) shown(v *value) string {
	if v.fields == nil {
		return shown(v.Node)
	}
	n := &document.Node{Kind: document.Object}
	for _, name := range v.order {
		n.Fields = append(n.Fields, document.Field{Key: name, Value: v.fields[name].Node})
	}
	return shown(n)
}

// fits reports whether a value is one that huskd has anyway.
func fits(f *field, v *value) bool {
	for _, want := range f.fits {
		switch f.kind {
		case duration:
			if d, err := time.ParseDuration(want); err == nil && d == durationOf(v) {
				return true
			}
		case texts:
			if string(v.AppendJSON(nil)) == want {
				return true
			}
		default:
			if v.Text == want {
				return true
			}
		}
	}
	return false
}

// put sets a key of huskd's.
func (t *translator) put(key string, to any, path string, v *value) {
	t.out.Values[key] = to
	t.out.Origin[key] = path + " in " + v.at()
}

// conversions are those of the fields that become one key by themselves.
var conversions = map[string]func(*translator, *field, *value){
	"staticPodPath":                          directory,
	"podLogsDir":                             path,
	"tlsCertFile":                            path,
	"tlsPrivateKeyFile":                      path,
	"authentication.x509.clientCAFile":       path,
	"resolvConf":                             path,
	"staticPodURL":                           scalar,
	"staticPodURLHeader":                     headers,
	"httpCheckFrequency":                     seconds,
	"tlsCipherSuites":                        suites,
	"tlsMinVersion":                          minVersion,
	"serverTLSBootstrap":                     scalar,
	"imagePullCredentialsVerificationPolicy": scalar,
	"preloadedImagesVerificationAllowlist":   list,
	"clusterDomain":                          scalar,
	"clusterDNS":                             list,
	"imageMinimumGCAge":                      seconds,
	"imageGCHighThresholdPercent":            scalar,
	"imageGCLowThresholdPercent":             scalar,
	"cgroupDriver":                           scalar,
	"podPidsLimit": func(t *translator, f *field, v *value) {
		t.put(f.key, max(integerOf(v), 0), f.path, v) // what is negative is the kubelet's "no limit"
	},
	"evictionSoft":            amounts,
	"evictionSoftGracePeriod": amounts,
	"evictionMinimumReclaim":  amounts,
	"memorySwap.swapBehavior": scalar,
	"containerLogMaxSize":     mebibytes,
	"containerLogMaxFiles":    scalar,
	"allowedUnsafeSysctls":    list,
	"providerID":              scalar,
	"logging.format":          scalar,
	"logging.verbosity": func(t *translator, f *field, v *value) {
		if integerOf(v) >= debugVerbosity {
			t.put(f.key, "debug", f.path, v)
		}
	},
	"seccompDefault":     scalar,
	"registerWithTaints": taints,
}

// debugVerbosity is klog's verbosity from which a component logs for debugging.
const debugVerbosity = 4

func scalar(t *translator, f *field, v *value) {
	switch f.kind {
	case boolean:
		t.put(f.key, v.Text == "true", f.path, v)
	case int32s, int64s:
		t.put(f.key, integerOf(v), f.path, v)
	default:
		t.put(f.key, v.Text, f.path, v)
	}
}

// path sets a path. Those of the first file are relative to its directory.
func path(t *translator, f *field, v *value) {
	name := v.Text
	if name != "" && !filepath.IsAbs(name) && v.file == t.names[0] {
		name = filepath.Join(filepath.Dir(v.file), name)
	}
	t.put(f.key, name, f.path, v)
}

// directory sets a path that must not be a file. For a kubelet it may be one.
func directory(t *translator, f *field, v *value) {
	path(t, f, v)
	name, _ := t.out.Values[f.key].(string)
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		t.refuse(v, f.path, "%s is a file: move it into a directory, and name that in %s of huskd.toml", t.shown(v), f.key)
	}
}

func list(t *translator, f *field, v *value) {
	out := []any{}
	for _, item := range v.Items {
		out = append(out, item.Text)
	}
	t.put(f.key, out, f.path, v)
}

// suites sets the names of cipher suites, of which a kubelet also knows two by former names.
func suites(t *translator, f *field, v *value) {
	out := []any{}
	for _, item := range v.Items {
		name := item.Text
		if strings.HasSuffix(name, "_CHACHA20_POLY1305") {
			name += "_SHA256"
		}
		out = append(out, name)
	}
	t.put(f.key, out, f.path, v)
}

func headers(t *translator, f *field, v *value) {
	out := []any{}
	for _, name := range v.order {
		for _, item := range v.fields[name].Items {
			out = append(out, name+": "+item.Text)
		}
	}
	t.put(f.key, out, f.path, v)
}

// seconds sets whole seconds, rounded up.
func seconds(t *translator, f *field, v *value) {
	t.put(f.key, t.seconds(f.path, v), f.path, v)
}

func (t *translator) seconds(path string, v *value) int64 {
	d := durationOf(v)
	n := int64(math.Ceil(d.Seconds()))
	if time.Duration(n)*time.Second != d {
		t.miss(path, v, "huskd counts whole seconds: it takes %d", n)
	}
	return n
}

// mebibytes sets a size in MiB, rounded down, but to no less than 1.
func mebibytes(t *translator, f *field, v *value) {
	q, ok := manifest.ParseQuantity(v.Text)
	if !ok || q.Sign() <= 0 {
		t.refuse(v, f.path, "%s is not a quantity such as 10Mi", t.shown(v))
		return
	}
	n := max(q.Value()>>20, 1)
	if n<<20 != q.Value() {
		t.miss(f.path, v, "huskd counts whole MiB: it takes %d", n)
	}
	t.put(f.key, n, f.path, v)
}

// minVersion sets the least version of TLS. huskd's own least version is 1.2, as is a kubelet's
// default.
func minVersion(t *translator, f *field, v *value) {
	if v.Text == "VersionTLS10" || v.Text == "VersionTLS11" {
		t.miss(f.path, v, "huskd has VersionTLS12 and VersionTLS13, and takes the former")
		return
	}
	scalar(t, f, v)
}

// amounts sets a table of quantities, percentages or durations by signal.
func amounts(t *translator, f *field, v *value) {
	if table := t.signals(f, v); len(table) > 0 {
		t.put(f.key, table, f.path, v)
	}
}

// signals returns values by the signal of evictions, without those of the signals that huskd's file
// systems don't have.
func (t *translator) signals(f *field, v *value) map[string]any {
	out := map[string]any{}
	for _, name := range v.order {
		at := v.fields[name]
		switch {
		case at.Kind == document.Null:
		case strings.HasPrefix(name, "containerfs."):
			t.miss(f.path+"."+name, at, "images and writable layers share a file system, whose signals are nodefs and imagefs")
		case t.isAmount(f, name, at):
			out[name] = at.Text
		}
	}
	return out
}

// isAmount reports whether a value can be parsed in bounded time, or refuses it.
func (t *translator) isAmount(f *field, name string, v *value) bool {
	if _, err := time.ParseDuration(v.Text); f.path == "evictionSoftGracePeriod" && err == nil {
		return true
	}
	if percent, ok := strings.CutSuffix(v.Text, "%"); ok {
		if _, err := strconv.ParseFloat(percent, 64); err == nil {
			return true
		}
	}
	if _, ok := manifest.ParseQuantity(v.Text); ok {
		return true
	}
	t.refuse(v, join(f.path, printable(name)), "%s can't be read: write a quantity such as 100Mi, or a percentage or duration where the field has these", t.shown(v))
	return false
}

// taints sets the node's taints.
func taints(t *translator, f *field, v *value) {
	out := []any{}
	for _, item := range v.Items {
		part := func(name string) string {
			if n := item.Get(name); n != nil {
				return n.Text
			}
			return ""
		}
		taint := part("key")
		if text := part("value"); text != "" {
			taint += "=" + text
		}
		out = append(out, taint+":"+part("effect"))
	}
	t.put(f.key, out, f.path, v)
}

// gates notes the feature gates by name.
func (t *translator) gates(f *field, v *value) {
	var others []string
	for _, name := range v.order {
		if at := v.fields[name]; at.Kind != document.Null && !(at.Text == "true" && slices.Contains(always, name)) {
			others = append(others, printable(name)+"="+at.Text)
		}
	}
	if len(others) > 0 {
		t.out.Missing = append(t.out.Missing, Note{Field: f.path, Value: printable(strings.Join(others, ",")), At: printable(v.at()), Text: f.why})
	}
}

// always are the feature gates of what huskd does in any case.
var always = []string{"GracefulNodeShutdown", "KubeletEnsureSecretPulledImages", "KubeletPSI", "KubeletTracing", "NodeSwap", "RotateKubeletServerCertificate", "SeccompDefault", "UserNamespacesSupport"}

// listen sets the addresses of the servers.
func (t *translator) listen() {
	if address, port := t.set("address"), t.set("port"); address != nil || port != nil {
		v, host, number := cmp.Or(port, address), "", "10250"
		if address != nil {
			host = address.Text
		}
		if port != nil {
			number = port.Text
		}
		t.put("node-listen", net.JoinHostPort(host, number), "address and port", v)
	}
	address, port := t.set("healthzBindAddress"), t.set("healthzPort")
	switch {
	case port != nil && integerOf(port) == 0:
		t.put("node-healthz-listen", "", "healthzPort", port)
	case address != nil || port != nil:
		v, host, number := cmp.Or(port, address), "127.0.0.1", "10248"
		if address != nil {
			host = address.Text
		}
		if port != nil {
			number = port.Text
		}
		t.put("node-healthz-listen", net.JoinHostPort(host, number), "healthzBindAddress and healthzPort", v)
	}
}

// evictions sets the hard thresholds. A kubelet has its defaults only if the first file names no
// threshold, or says mergeDefaultEvictionSettings; otherwise what it doesn't name is off. huskd has
// its defaults for all that aren't named. The drop-ins add to either.
func (t *translator) evictions() {
	f := fieldAt("evictionHard")
	v := t.set(f.path)
	if v == nil {
		return
	}
	table := t.signals(f, v)
	base, all := t.base.get(f.path), t.base.get("mergeDefaultEvictionSettings")
	if base != nil && base.Kind != document.Null && (all == nil || all.Text != "true") {
		for signal := range eviction.DefaultHard() {
			if _, named := table[signal]; !named {
				table[signal] = "0%"
			}
		}
	}
	if v := t.merged.get("mergeDefaultEvictionSettings"); v != nil && v.file != t.names[0] {
		t.miss("mergeDefaultEvictionSettings", v, "a kubelet ignores it in a drop-in, and so does huskd")
	}
	if len(table) > 0 {
		t.put(f.key, table, f.path, v)
	}
}

// reservations sets what is reserved for the system and for huskd. reservedSystemCPUs replaces the
// CPUs of both, as in a kubelet.
func (t *translator) reservations() {
	tables, origins := map[string]map[string]any{}, map[string]*value{}
	for _, name := range []string{"kubeReserved", "systemReserved"} {
		if v := t.set(name); v != nil {
			tables[name], origins[name] = map[string]any{}, v
			for _, r := range v.order {
				if at := v.fields[r]; at.Kind != document.Null && t.isAmount(fieldAt(name), r, at) {
					tables[name][r] = at.Text
				}
			}
		}
	}
	if v := t.set("reservedSystemCPUs"); v != nil {
		n, err := countCPUs(v.Text)
		if err != nil {
			t.refuse(v, "reservedSystemCPUs", "%s is not a list of CPUs such as 0-1,4", t.shown(v))
			return
		}
		delete(tables["kubeReserved"], "cpu")
		if tables["systemReserved"] == nil {
			tables["systemReserved"], origins["systemReserved"] = map[string]any{}, v
		}
		tables["systemReserved"]["cpu"] = strconv.Itoa(n)
		t.miss("reservedSystemCPUs", v, "huskd reserves the number of these CPUs in system-reserved, and doesn't keep pods off them")
	}
	for name, table := range tables {
		if len(table) > 0 {
			t.put(fieldAt(name).key, table, name, origins[name])
		}
	}
}

// cpuList and countCPUs bound what is expanded. The kernel has at most 8192 CPUs.
var cpuList = regexp.MustCompile(`^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$`)

func countCPUs(list string) (int, error) {
	if len(list) > 1024 || !cpuList.MatchString(list) {
		return 0, errors.New("not a list of CPUs")
	}
	cpus, err := cpuset.Parse(list)
	return cpus.Size(), err
}

// pods sets the maximum number of pods.
func (t *translator) pods() {
	most, perCore := t.set("maxPods"), t.set("podsPerCore")
	if most != nil {
		t.put("max-pods", integerOf(most), "maxPods", most)
	}
	if perCore == nil {
		return
	}
	limit, n := int64(110), integerOf(perCore)*int64(runtime.NumCPU())
	if most != nil {
		limit = integerOf(most)
	}
	if n < limit {
		t.put("max-pods", n, fmt.Sprintf("podsPerCore, of %d cores,", runtime.NumCPU()), perCore)
	}
}

// critical is the least priority of a critical pod, system-cluster-critical.
const critical = 2000000000

// shutdown sets how long a shutdown is delayed. A kubelet whose period is set has none for critical
// pods unless that is set too.
func (t *translator) shutdown() {
	total, part, byPriority := t.set("shutdownGracePeriod"), t.set("shutdownGracePeriodCriticalPods"), t.set("shutdownGracePeriodByPodPriority")
	switch {
	case total != nil:
		t.put("shutdown-grace-period", t.seconds("shutdownGracePeriod", total), "shutdownGracePeriod", total)
		t.put("shutdown-grace-period-critical-pods", int64(0), "shutdownGracePeriod", total)
		if part != nil {
			t.put("shutdown-grace-period-critical-pods", t.seconds("shutdownGracePeriodCriticalPods", part), "shutdownGracePeriodCriticalPods", part)
		}
	case byPriority != nil:
		periods := map[int64]int64{}
		var sum int64
		for _, item := range byPriority.Items {
			number := func(name string) int64 {
				if n := item.Get(name); n != nil {
					return integerOf(&value{Node: n})
				}
				return 0
			}
			seconds := number("shutdownGracePeriodSeconds")
			periods[number("priority")], sum = seconds, sum+seconds
		}
		if others := maps.Clone(periods); len(others) > 0 {
			delete(others, 0)
			delete(others, critical)
			if len(others) > 0 {
				t.miss("shutdownGracePeriodByPodPriority", byPriority, "huskd stops pods in two steps, of the priorities 0 and %d: it takes the sum of the periods, and for critical pods that of %d", critical, critical)
			}
		}
		t.put("shutdown-grace-period", sum, "shutdownGracePeriodByPodPriority", byPriority)
		t.put("shutdown-grace-period-critical-pods", periods[critical], "shutdownGracePeriodByPodPriority", byPriority)
	}
}

// tracing sets the collector of traces. The table is there as soon as the object is, which turns a
// kubelet's tracing on.
func (t *translator) tracing() {
	v := t.merged.get("tracing")
	if v == nil || v.fields == nil {
		return
	}
	endpoint, sampling := "localhost:4317", 0.0
	if e := t.set("tracing.endpoint"); e != nil {
		endpoint = e.Text
	}
	if s := t.set("tracing.samplingRatePerMillion"); s != nil {
		sampling = float64(integerOf(s)) / 1e6
	}
	t.put("tracing", map[string]any{"endpoint": "http://" + endpoint, "sampling": sampling}, "tracing", v)
}
