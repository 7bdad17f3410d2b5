package daemonless

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
)

// bench is a node and a pod, and runs programs on the node.
type bench struct {
	b              testing.TB
	dir, node, pod string
}

func newBench(b testing.TB) *bench {
	hosttest.Root(b)
	s := &bench{b: b, dir: b.TempDir()}
	s.node, s.pod = filepath.Join(s.dir, "node"), filepath.Join(s.dir, "pod")
	for _, path := range []string{s.node, s.pod} {
		must(b, netns.Create(netns.Pins{Net: path}))
		b.Cleanup(func() {
			if err := netns.Remove(path); err != nil {
				b.Error(err)
			}
		})
	}
	return s
}

// run runs a plugin on the node and returns how long it took and its stdout.
func (s *bench) run(program, command, id string, conf map[string]any) (time.Duration, []byte) {
	s.b.Helper()
	stdin, err := json.Marshal(conf)
	must(s.b, err)
	var out, errs strings.Builder
	var took time.Duration
	must(s.b, netns.Do(s.node, func() error {
		cmd := exec.Command(program)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(stdin)), &out, &errs
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+id, "CNI_NETNS="+s.pod, "CNI_IFNAME=eth0", "CNI_PATH=/usr/lib/cni")
		start := time.Now()
		err := cmd.Run()
		took = time.Since(start)
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s%s", program, command, err, out.String(), errs.String())
		}
		return nil
	}))
	return took, []byte(out.String())
}

// chain runs plugins as a runtime does, each with the result of the previous one.
func (s *bench) chain(command, id string, plugins []step) (took time.Duration) {
	s.b.Helper()
	plugins = slices.Clone(plugins)
	if command == "DEL" {
		slices.Reverse(plugins)
	}
	var prev json.RawMessage
	for _, p := range plugins {
		if prev != nil {
			p.conf["prevResult"] = prev
		}
		t, out := s.run(p.program, command, id, p.conf)
		took += t
		if len(out) > 0 {
			prev = out
		}
	}
	return took
}

type step struct {
	program string
	conf    map[string]any
}

// BenchmarkPrograms runs husk-cni as a runtime does, with more and more leases, next to the
// reference plugins in the same run.
func BenchmarkPrograms(b *testing.B) {
	hosttest.Root(b)
	program := filepath.Join(b.TempDir(), "husk-cni")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "github.com/huskd/husk/cmd/husk-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(program)
	must(b, err)
	b.Run("VERSION", func(b *testing.B) {
		s := newBench(b)
		var all []time.Duration
		for b.Loop() {
			took, _ := s.run(program, "VERSION", "", nil)
			all = append(all, took)
		}
		report(b, "", all)
		b.ReportMetric(float64(info.Size())/1e6, "MB")
	})
	for _, leases := range []int{0, 1000, 20_000, 60_000} {
		b.Run(fmt.Sprintf("husk-cni/%d", leases), func(b *testing.B) {
			s := newBench(b)
			data := filepath.Join(s.dir, "data")
			n := newNetwork(b, "10.244.0.0/16")
			n.cfg.Dir = filepath.Join(data, "pods")
			n, err := New(n.cfg)
			must(b, err)
			if leases > 0 {
				fill(b, n, leases)
			}
			s.measure(b, []step{{program, map[string]any{
				"cniVersion": "1.0.0", "name": "pods", "type": "husk-cni", "subnet": "10.244.0.0/16", "dataDir": data,
				"runtimeConfig": portMapping,
			}}})
		})
	}
	for _, leases := range []int{0, 1000, 20_000} {
		b.Run(fmt.Sprintf("host-local/%d", leases), func(b *testing.B) {
			s := newBench(b)
			data := filepath.Join(s.dir, "data")
			fillHostLocal(b, filepath.Join(data, "pods"), leases)
			s.measure(b, []step{{"/usr/lib/cni/host-local", map[string]any{
				"cniVersion": "1.0.0", "name": "pods", "type": "ptp",
				"ipam": map[string]any{"type": "host-local", "subnet": "10.244.0.0/16", "dataDir": data},
			}}})
		})
	}
	b.Run("ptp+host-local+portmap/0", func(b *testing.B) {
		s := newBench(b)
		s.measure(b, []step{
			{"/usr/lib/cni/ptp", map[string]any{
				"cniVersion": "1.0.0", "name": "pods", "type": "ptp", "ipMasq": true,
				"ipam": map[string]any{"type": "host-local", "subnet": "10.244.0.0/16", "dataDir": filepath.Join(s.dir, "data")},
			}},
			{"/usr/lib/cni/portmap", map[string]any{
				"cniVersion": "1.0.0", "name": "pods", "type": "portmap", "snat": true, "runtimeConfig": portMapping,
			}},
		})
	})
}

var portMapping = map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}

func (s *bench) measure(b *testing.B, plugins []step) {
	var add, del []time.Duration
	i := 0
	for b.Loop() {
		id := fmt.Sprint("container", i)
		i++
		add = append(add, s.chain("ADD", id, plugins))
		del = append(del, s.chain("DEL", id, plugins))
	}
	report(b, "-add", add)
	report(b, "-del", del)
}

func report(b *testing.B, what string, all []time.Duration) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-p50"+what)
}

// fillHostLocal writes leases in the format of host-local.
func fillHostLocal(b *testing.B, dir string, leases int) {
	must(b, os.MkdirAll(dir, 0o755))
	a := netip.MustParseAddr("10.244.0.2")
	last := a
	for i := range leases {
		must(b, os.WriteFile(filepath.Join(dir, a.String()), fmt.Appendf(nil, "filler%d\r\neth0", i), 0o600))
		last, a = a, a.Next()
	}
	if leases > 0 {
		must(b, os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(last.String()), 0o600))
	}
}

// BenchmarkAttachDetach measures the same as function calls, as a daemon makes them.
func BenchmarkAttachDetach(b *testing.B) {
	for _, leases := range []int{0, 60_000} {
		b.Run(fmt.Sprint(leases), func(b *testing.B) {
			s := newBench(b)
			n := newNetwork(b, "10.244.0.0/16")
			n.cfg.Netns = s.node
			fill(b, n, leases)
			var add, del []time.Duration
			i := 0
			for b.Loop() {
				r := fresh(fmt.Sprint("container", i))
				i++
				r.Attachment.Netns = s.pod
				start := time.Now()
				_, err := n.Attach(b.Context(), r.Attachment)
				must(b, err)
				attached := time.Now()
				must(b, n.Detach(b.Context(), r.Attachment.Sandbox))
				add, del = append(add, attached.Sub(start)), append(del, time.Since(attached))
			}
			report(b, "-add", add)
			report(b, "-del", del)
		})
	}
}
