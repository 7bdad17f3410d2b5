package shim

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	task2 "github.com/containerd/containerd/api/runtime/task/v2"
	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
)

func TestParseEndpoint(t *testing.T) {
	newest, err := proto.Marshal(&bootstrap.BootstrapResult{Version: 3, Address: "unix:///run/s", Protocol: "ttrpc"})
	if err != nil {
		t.Fatal(err)
	}
	for out, want := range map[string]endpoint{
		string(newest):        {"unix:///run/s", 3},
		"unix:///run/s":       {"unix:///run/s", 2},
		"unix:///run/s\n":     {"unix:///run/s", 2},
		"/containerd-shim/x@": {"/containerd-shim/x@", 2},
		`{"version":2,"address":"unix:///run/s","protocol":"ttrpc"}`: {"unix:///run/s", 2},
		`{"version":3,"address":"unix:///run/s","protocol":"TTRPC"}`: {"unix:///run/s", 3},
	} {
		if got, err := parseEndpoint([]byte(out)); err != nil || got != want {
			t.Errorf("endpoint in %q is %+v, %v; want %+v", out, got, err, want)
		}
	}
	for _, out := range []string{
		"", "\n", "{", "{}", `{"version":"3"}`, `{"version":4,"address":"unix:///run/s","protocol":"ttrpc"}`,
		`{"version":3,"address":"unix:///run/s","protocol":"grpc"}`, `{"version":3,"protocol":"ttrpc"}`, "vsock://3:1024", "hvsock:///run/k:1024",
		`{"version":3,"address":"vsock://2:1","protocol":"ttrpc"}`, "two\nlines", "\x01\x02\x03", string(newest[:5]),
	} {
		if got, err := parseEndpoint([]byte(out)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("endpoint in %q is %+v, %v; want a one-line error", out, got, err)
		}
	}
}

func FuzzParseEndpoint(f *testing.F) {
	f.Add([]byte(`{"version":3}`))
	f.Add([]byte("\x08\x03"))
	f.Fuzz(func(_ *testing.T, out []byte) { _, _ = parseEndpoint(out) })
}

func TestSocket(t *testing.T) {
	for address, want := range map[string]string{"unix:///run/s": "/run/s", "/containerd-shim/x": "\x00/containerd-shim/x"} {
		if got := (endpoint{Address: address}).socket(); got != want {
			t.Errorf("socket of %q is %q, want %q", address, got, want)
		}
	}
}

// TestVersions checks that both versions of the task service have the same messages on the wire.
func TestVersions(t *testing.T) {
	methods := task3.File_runtime_task_v3_shim_proto.Services().Get(0).Methods()
	before := task2.File_runtime_task_v2_shim_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		old := before.ByName(m.Name())
		if old == nil {
			t.Errorf("%s is not in version 2", m.Name())
			continue
		}
		same(t, old.Input(), m.Input())
		same(t, old.Output(), m.Output())
	}
}

func same(t *testing.T, old, now protoreflect.MessageDescriptor) {
	t.Helper()
	for i := range old.Fields().Len() {
		was := old.Fields().Get(i)
		is := now.Fields().ByNumber(was.Number())
		if is == nil || is.Name() != was.Name() || is.Kind() != was.Kind() || is.Cardinality() != was.Cardinality() {
			t.Errorf("%s is %v in version 2 and %v in version 3", was.FullName(), was, is)
		}
	}
}

func TestUsageOf(t *testing.T) {
	encode := func(m proto.Message) *anypb.Any {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: raw}
	}
	want := oci.Usage{CPU: 5000, Memory: 6, Processes: 7}
	for _, m := range []proto.Message{
		&v1.Metrics{CPU: &v1.CPUStat{Usage: &v1.CPUUsage{Total: 5000}}, Memory: &v1.MemoryStat{Usage: &v1.MemoryEntry{Usage: 6}}, Pids: &v1.PidsStat{Current: 7}},
		&v2.Metrics{CPU: &v2.CPUStat{UsageUsec: 5}, Memory: &v2.MemoryStat{Usage: 6}, Pids: &v2.PidsStat{Current: 7}},
	} {
		if got, err := usageOf(encode(m)); err != nil || got != want {
			t.Errorf("usage is %+v, %v; want %+v", got, err, want)
		}
	}
	for _, metrics := range []*anypb.Any{nil, {}, {TypeUrl: "other"}, {TypeUrl: encode(&v1.Metrics{}).GetTypeUrl(), Value: []byte{0xff}}} {
		if got, err := usageOf(metrics); err == nil {
			t.Errorf("usage in %v is %+v, want an error", metrics, got)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]string{
		"containerd-shim-runc-v2:\n  Version:  v2.4.2\n  Revision: x\n  Go version: go1.26\n":       "v2.4.2",
		"Kata Containers containerd shim: id: \"io.containerd.kata.v2\", version: 3.2.0, commit: x": "3.2.0",
		"": "", "x\n": "", "version": "", "Go version: 1\n": "",
	} {
		if got := parseVersion(out); got != want {
			t.Errorf("version in %q is %q, want %q", out, got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for path, want := range map[string][2]string{
		"/usr/local/bin/containerd-shim-runsc-v1": {"runsc", "io.containerd.runsc.v1.options"},
		"/opt/kata/bin/containerd-shim-kata-v2":   {"kata", ""},
	} {
		h := Handler{Path: path, Config: "/etc/config"}
		options, err := h.options()
		if err != nil || options.GetTypeUrl() != "runtimeoptions.v1.Options" {
			t.Fatal(options, err)
		}
		var o runtimeoptions.Options
		if err := proto.Unmarshal(options.GetValue(), &o); err != nil {
			t.Fatal(err)
		}
		if got := [2]string{h.Runtime(), o.GetTypeUrl()}; got != want || o.GetConfigPath() != "/etc/config" {
			t.Errorf("runtime and options of %s are %q and %v, want %q", path, got, &o, want)
		}
		// Kata's shim in Rust, up to 3.20, reads the path from there.
		if h.Runtime() == "kata" && string(options.GetValue()[2:]) != "/etc/config" {
			t.Errorf("the path doesn't follow the first two bytes: %q", options.GetValue())
		}
	}
}

func TestAdaptSpec(t *testing.T) {
	type spec struct {
		Root        struct{ Path string }
		Process     struct{ OOMScoreAdj *int }
		Annotations map[string]string
		Unknown     string
	}
	read := func(raw string) (s spec) {
		t.Helper()
		b := &bundle.Bundle{Dir: "/b", Raw: []byte(raw)}
		if err := json.Unmarshal(b.Raw, b); err != nil {
			t.Fatal(err)
		}
		out, err := adaptSpec(b, "id")
		if err == nil {
			err = json.Unmarshal(out, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := read(`{"root":{"path":"rootfs"},"unknown":"kept"}`)
	if s.Root.Path != "/b/rootfs" || s.Process.OOMScoreAdj == nil || s.Unknown != "kept" || s.Annotations[annotationType] != typeSandbox || s.Annotations[annotationSandbox] != "id" {
		t.Errorf("a minimal spec becomes %+v", s)
	}
	s = read(`{"root":{"path":"/r"},"process":{"oomScoreAdj":-5},"annotations":{"` + annotationType + `":"container","` + annotationSandbox + `":"s"}}`)
	if s.Root.Path != "/r" || *s.Process.OOMScoreAdj != -5 || s.Annotations[annotationType] != typeContainer || s.Annotations[annotationSandbox] != "s" {
		t.Errorf("a full spec becomes %+v", s)
	}
}
