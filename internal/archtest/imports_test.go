package archtest

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The layers, lowest first. A package may import packages of lower layers, and those that allowed
// names.
const (
	words  = iota
	pure   // values in, values out
	driver // touches one facility of the world
	owner  // owns one kind of state
	agent  // composes owners
	edge   // translates
	wiring
	command
	tests // packages that only tests and tools import
)

// layer is the layer of each package. Adding a new package here makes its place a reviewed
// decision.
var layer = map[string]int{
	"api/v1":                            words,
	"internal/pod":                      words,
	"internal/manifest/podspec":         words,
	"internal/backoff":                  words,
	"internal/oci":                      words,
	"internal/crashpoint":               words,
	"internal/version":                  words,
	"internal/trace":                    driver,
	"internal/trace/export":             driver,
	"internal/checkpoint":               driver,
	"internal/cgroup/systemd":           pure,
	"internal/resourceclass":            driver,
	"internal/selinux":                  driver,
	"internal/sdnotify":                 driver,
	"internal/projectquota":             driver,
	"internal/logind":                   driver,
	"internal/host":                     driver,
	"internal/dirmodes":                 driver,
	"internal/sysctl":                   words,
	"internal/lifecycle":                pure,
	"internal/lifecycle/owner":          owner,
	"internal/sandbox/sandboxstate":     pure,
	"internal/container/containerstate": pure,
	"internal/oci/spec":                 pure,
	"internal/network/ipam":             pure,
	"internal/network/plan":             pure,
	"internal/network/peer":             pure,
	"internal/network/backend":          pure,
	"internal/network/policy":           pure,
	"internal/network/policy/compile":   pure,
	"internal/network/policy/ruleset":   pure,
	"internal/network/policy/accept":    pure,
	"internal/network/policy/apisource": driver,
	"internal/network/policy/declared":  driver,
	"internal/network/service":          pure,
	"internal/network/service/accept":   pure,
	"internal/network/service/compile":  pure,
	"internal/network/policy/exchange":  driver,
	"internal/network/lease":            owner,
	"internal/network/lease/claim":      pure,
	"internal/network/lease/flannel":    pure,
	"internal/network/lease/kubernetes": driver,
	"internal/network/lease/etcd":       driver,
	"internal/network/lease/file":       driver,
	"internal/network/displaced":        owner,
	"internal/network/nodes":            owner,
	"internal/network/nodestore":        agent,
	"internal/network/peering":          agent,
	"internal/network/enforcement":      agent,
	"internal/network/explain":          agent,
	"internal/network/wireguard":        driver,
	"internal/network/bfd":              driver,
	"internal/network/bgp":              driver,
	"internal/network/companion":        driver,
	"internal/network/heartbeat":        driver,
	"internal/dns/zone":                 pure,
	"internal/dns/forward":              driver,
	"internal/dns/nameserver":           driver,
	"internal/workload":                 pure,
	"internal/manifest/minimal":         pure,
	"internal/workload/convert":         pure,
	"internal/workload/controller":      agent,
	"internal/manifest":                 pure,
	"internal/manifest/claim":           pure,
	"internal/manifest/criconfig":       pure,
	"internal/manifest/document":        pure,
	"internal/manifest/fields":          pure,
	"internal/manifest/identity":        pure,
	"internal/manifest/kinds":           pure,
	"internal/manifest/remedy":          pure,
	"internal/agent/podplan":            pure,
	"internal/journal":                  driver,
	"internal/logs":                     driver,
	"internal/netns":                    driver,
	"internal/sharedmount":              driver,
	"internal/network/datapath":         driver,
	"internal/network/conntrack":        driver,
	"internal/network/connlimit":        driver,
	"internal/network/policytable":      driver,
	"internal/network/kernelwatch":      driver,
	"internal/network/preflight":        driver,
	"internal/netns/netnstest":          driver,
	"internal/golden":                   driver,
	"internal/filewatch":                driver,
	"internal/atomicfile":               driver,
	"internal/network/nlsock":           driver,
	"internal/network/overlay":          driver,
	"internal/network/rtnetlink":        driver,
	"internal/oci/monitor":              driver,
	"internal/oci/record":               driver,
	"internal/oci/bundle":               driver,
	"internal/oci/stdioholder":          driver,
	"internal/oci/stdio":                driver,
	"internal/oci/exectag":              driver,
	"internal/oci/native":               driver,
	"internal/oci/native/nativetest":    driver,
	"internal/oci/pause":                driver,
	"internal/oci/shim":                 driver,
	"internal/oci/conmon":               driver,
	"internal/userns":                   driver,
	"internal/keylock":                  driver,
	"internal/chunkstream":              pure,
	"internal/filecopy":                 driver,
	"internal/pidfd":                    driver,
	"internal/poll":                     driver,
	"internal/cgroup":                   driver,
	"internal/sandbox":                  owner,
	"internal/sandbox/infra":            owner,
	"internal/container":                owner,
	"internal/image":                    owner,
	"internal/image/credentialprovider": driver,
	"internal/deviceplugin":             owner,
	"internal/pluginregistry":           driver,
	"internal/image/access":             pure,
	"internal/image/database":           driver,
	"internal/image/layer":              driver,
	"internal/image/loginfile":          driver,
	"internal/image/registry":           driver,
	"internal/image/rootfs":             driver,
	"internal/network":                  owner,
	"internal/network/firewall":         owner,
	"internal/network/daemonless":       owner,
	"internal/plugin":                   edge,
	"internal/plugin/conflist":          driver,
	"internal/plugin/rpc":               driver,
	"internal/agent":                    agent,
	"internal/agent/source":             agent,
	"internal/agent/objects":            agent,
	"internal/agent/source/apiserver":   agent,
	"internal/cluster":                  driver,
	"internal/cluster/kubeletapi":       edge,
	"internal/cluster/registration":     edge,
	"internal/cluster/podstatus":        edge,
	"internal/cluster/nodestats":        edge,
	"internal/cluster/capacity":         pure,
	"internal/cluster/certificate":      edge,
	"internal/agent/eviction":           pure,
	"internal/agent/view":               agent,
	"internal/housekeeping":             agent,
	"internal/agent/admission":          driver,
	"internal/agent/idrange":            agent,
	"internal/agent/event":              driver,
	"internal/agent/probe":              driver,
	"internal/agent/volume":             owner,
	"internal/agent/podlogs":            driver,
	"internal/api":                      edge,
	"internal/cri":                      edge,
	"internal/stream":                   edge,
	"internal/nri":                      edge,
	"internal/nri/adjust":               pure,
	"internal/metrics":                  edge,
	"internal/stats":                    driver,
	"internal/stats/cadvisor":           pure,
	"internal/cli":                      edge,
	"internal/cli/client":               driver,
	"internal/cli/portforward":          driver,
	"internal/cli/flags":                driver,
	"internal/cli/help":                 pure,
	"internal/cli/foreign":              pure,
	"internal/cli/input":                driver,
	"internal/cli/podflags":             pure,
	"internal/cli/copycmd":              edge,
	"internal/cli/debugcmd":             edge,
	"internal/cli/imagecmd":             edge,
	"internal/cli/lifecyclecmd":         edge,
	"internal/cli/usageerror":           pure,
	"internal/cli/netcmd":               edge,
	"internal/cli/workloadcmd":          edge,
	"internal/cli/systemcmd":            edge,
	"internal/cli/generatecmd":          edge,
	"internal/cli/volumecmd":            edge,
	"internal/cli/render":               pure,
	"internal/cli/session":              driver,
	"internal/cli/terminal":             driver,
	"internal/doctor":                   edge,
	"internal/bench":                    agent,
	"internal/bench/gauge":              driver,
	"internal/bench/report":             pure,
	"internal/cli/benchcmd":             edge,
	"internal/cni":                      owner,
	"internal/cni/conf":                 driver,
	"internal/cni/process":              driver,
	"internal/cni/request":              pure,
	"internal/cni/result":               pure,
	"internal/config":                   driver,
	"internal/kubeletconfig":            driver,
	"internal/daemon":                   wiring,
	"cmd/huskd":                         command,
	"cmd/husk":                          command,
	"cmd/husk-cni":                      command,
	"cmd/husk-wireguard":                command,
	"cmd/husk-bgp":                      command,
	"packaging/image":                   command,
	"packaging/manual":                  command,
	"packaging/sbom":                    command,
	"internal/chansync":                 driver,
	"internal/simulation":               tests,
	"internal/archtest":                 tests,

	"internal/network/servicetable":      driver,
	"internal/network/nftable":           driver,
	"internal/network/service/apisource": driver,
	"internal/network/service/endpoints": pure,
	"internal/network/service/placement": pure,
	"internal/network/service/declared":  agent,
	"internal/network/serviceproxy":      agent,
	"internal/api/imageapi":              edge,
	"internal/api/fileapi":               edge,
	"internal/api/debugapi":              edge,
	"internal/api/podref":                edge,
	"internal/api/serviceapi":            edge,
	"internal/api/systemapi":             edge,
	"internal/api/storageapi":            edge,
	"internal/api/manifestapi":           edge,
	"internal/network/balancer":          owner,
}

// allowed are the imports within a layer, and the few that go up.
var allowed = map[string][]string{
	"internal/agent":                    {"internal/agent/idrange", "internal/agent/source", "internal/agent/view"},
	"internal/trace/export":             {"internal/trace"},
	"internal/agent/source/apiserver":   {"internal/agent/source"},
	"internal/agent/probe":              {"internal/journal"},
	"internal/agent/objects":            {"internal/agent/source"},
	"internal/cluster/kubeletapi":       {"internal/stream"},
	"internal/config":                   {"internal/kubeletconfig"},
	"internal/cri":                      {"internal/stream"},
	"internal/oci/monitor":              {"internal/atomicfile", "internal/oci/record", "internal/host", "internal/oci/stdio", "internal/oci/bundle", "internal/oci/exectag", "internal/oci/pause", "internal/cgroup", "internal/oci/conmon", "internal/pidfd", "internal/poll"},
	"internal/oci/conmon":               {"internal/pidfd", "internal/poll"},
	"internal/oci/record":               {"internal/atomicfile", "internal/oci/bundle"},
	"internal/oci/stdio":                {"internal/poll"},
	"internal/oci/bundle":               {"internal/oci/exectag", "internal/oci/pause", "internal/userns"},
	"internal/oci/exectag":              {"internal/cgroup", "internal/pidfd"},
	"internal/oci/stdioholder":          {"internal/oci/native", "internal/oci/native/nativetest"},
	"internal/oci/pause":                {"internal/oci/native", "internal/oci/native/nativetest"},
	"internal/oci/shim":                 {"internal/atomicfile", "internal/oci/record", "internal/oci/stdio", "internal/host", "internal/oci/pause", "internal/oci/stdioholder", "internal/cgroup", "internal/oci/conmon", "internal/oci/bundle", "internal/oci/exectag", "internal/pidfd", "internal/poll"},
	"internal/filecopy":                 {"internal/netns", "internal/pidfd"},
	"internal/pidfd":                    {"internal/poll"},
	"internal/host":                     {"internal/userns"},
	"internal/userns":                   {"internal/oci/pause"},
	"internal/netns":                    {"internal/userns", "internal/sharedmount"},
	"internal/cni/conf":                 {"internal/filewatch"},
	"internal/network/lease/etcd":       {"internal/network/policy/exchange"},
	"internal/network/lease/file":       {"internal/filewatch"},
	"internal/dns/zone":                 {"internal/network/service"},
	"internal/dns/forward":              {"internal/filewatch"},
	"internal/dns/nameserver":           {"internal/dns/forward"},
	"internal/sharedmount":              {"internal/host"}, // for the boot ID
	"internal/image/database":           {"internal/host"}, // likewise
	"internal/image/rootfs":             {"internal/userns"},
	"internal/network/peer":             {"internal/network/plan"},
	"internal/network/heartbeat":        {"internal/netns", "internal/network/nlsock"},
	"internal/network/policy/compile":   {"internal/network/policy", "internal/network/policy/ruleset"},
	"internal/network/policy/ruleset":   {"internal/network/policy"},
	"internal/network/policy/accept":    {"internal/network/policy"},
	"internal/network/policy/apisource": {"internal/cluster"},
	"internal/network/service/accept":   {"internal/network/service"},
	"internal/network/service/compile":  {"internal/network/service"},
	"internal/network/backend":          {"internal/network/peer", "internal/network/plan"},
	"internal/network/lease/flannel":    {"internal/network/peer"},
	"internal/network/lease/kubernetes": {"internal/cluster"},
	"internal/network/peering":          {"internal/network/nodestore"},
	"internal/network/datapath":         {"internal/netns", "internal/network/conntrack", "internal/network/kernelwatch", "internal/network/nlsock", "internal/network/rtnetlink"},
	"internal/network/overlay":          {"internal/netns", "internal/network/nlsock", "internal/network/rtnetlink"},
	"internal/network/rtnetlink":        {"internal/network/nlsock"},
	"internal/network/bgp":              {"internal/network/companion", "internal/oci", "internal/pidfd"},
	"internal/network/lease/claim":      {"internal/network/peer"},
	"internal/network/conntrack":        {"internal/network/nftable", "internal/network/nlsock"},
	"internal/network/connlimit":        {"internal/netns", "internal/network/conntrack", "internal/network/nftable", "internal/network/nlsock"},
	"internal/network/policytable":      {"internal/netns", "internal/network/conntrack", "internal/network/nftable", "internal/network/nlsock"},
	"internal/network/kernelwatch":      {"internal/netns", "internal/network/nlsock", "internal/network/rtnetlink"},
	"internal/network/preflight":        {"internal/network/nlsock"},
	"internal/netns/netnstest":          {"internal/netns"},
	"internal/api/manifestapi":          {"internal/api/podref"},
	"internal/cli":                      {"internal/cli/copycmd", "internal/cli/debugcmd", "internal/cli/generatecmd", "internal/cli/imagecmd", "internal/cli/lifecyclecmd", "internal/cli/netcmd", "internal/cli/benchcmd", "internal/cli/systemcmd", "internal/cli/volumecmd", "internal/cli/workloadcmd"},
	"internal/cli/session":              {"internal/cli/terminal"},
	"internal/cli/portforward":          {"internal/cli/client"},
	"internal/cli/flags":                {"internal/cli/terminal"},
	"internal/cli/input":                {"internal/cli/terminal"},
	"internal/stats":                    {"internal/host", "internal/netns"},
	"internal/oci/spec":                 {"internal/host"}, // for Facts, which is a value
	"internal/manifest":                 {"internal/manifest/claim", "internal/manifest/document", "internal/manifest/fields", "internal/manifest/identity", "internal/manifest/kinds", "internal/manifest/remedy", "internal/network/policy", "internal/network/policy/accept", "internal/network/service", "internal/network/service/accept", "internal/workload", "internal/workload/convert"},
	"internal/workload":                 {"internal/manifest/claim"},
	"internal/manifest/minimal":         {"internal/manifest"},
	"internal/workload/convert":         {"internal/workload"},
	"internal/workload/controller":      {"internal/agent", "internal/agent/source"},
	"internal/nri/adjust":               {"internal/host", "internal/oci/spec"},
	"internal/agent/eviction":           {"internal/manifest/criconfig"},
	"internal/agent/podplan":            {"internal/manifest/remedy"},
	"internal/manifest/fields":          {"internal/manifest/remedy"},
	"internal/stats/cadvisor":           {"internal/stats"}, // for Usage, which is a value
	"internal/manifest/criconfig":       {"internal/manifest", "internal/manifest/identity", "internal/oci/spec"},
	"internal/cgroup":                   {"internal/host"},
	"internal/cni/process":              {"internal/netns", "internal/pidfd", "internal/poll"},
	"internal/sandbox/sandboxstate":     {"internal/lifecycle"},
	"internal/container/containerstate": {"internal/lifecycle"},
	"internal/sandbox":                  {"internal/lifecycle/owner", "internal/sandbox/infra"},
	"internal/container":                {"internal/lifecycle/owner"},

	"internal/network/servicetable":      {"internal/netns", "internal/network/conntrack", "internal/network/nftable", "internal/network/nlsock"},
	"internal/network/nftable":           {"internal/network/kernelwatch", "internal/network/nlsock"},
	"internal/network/service/apisource": {"internal/cluster"},
	"internal/network/service/endpoints": {"internal/network/service", "internal/network/service/accept"},
	"internal/network/service/declared":  {"internal/agent", "internal/agent/source"},
	"internal/network/serviceproxy":      {"internal/agent/source", "internal/network/service/declared"},
	"internal/api":                       {"internal/api/podref", "internal/api/serviceapi"},
	"internal/api/fileapi":               {"internal/api/podref"},
	"internal/api/debugapi":              {"internal/api/podref"},
	"internal/oci/native":                {"internal/atomicfile"},
	"internal/network/wireguard":         {"internal/atomicfile"},
	"internal/image/loginfile":           {"internal/atomicfile"},
	"internal/plugin/conflist":           {"internal/atomicfile"},
}

func layerOf(pkg string) (int, bool) {
	if strings.HasPrefix(pkg, "test/") || strings.HasSuffix(pkg, "test") {
		return tests, true
	}
	l, ok := layer[pkg]
	return l, ok
}

func TestImportsGoDown(t *testing.T) {
	for pkg, files := range load(t, false) {
		from, ok := layerOf(pkg)
		if !ok {
			t.Errorf("package %s has no layer: add it to the table in imports_test.go", pkg)
			continue
		}
		for _, f := range files {
			for _, imp := range ours(f) {
				to, ok := layerOf(imp)
				switch {
				case !ok:
					t.Errorf("%s imports %s, which has no layer", f.path, imp)
				case slices.Contains(allowed[pkg], imp), from == tests, from == wiring && to < wiring:
				case to >= from:
					t.Errorf("%s imports %s: not a lower layer", f.path, imp)
				}
			}
		}
	}
}

// TestPurePackagesHaveNoEffects keeps the packages that decide free of effects, so they can be
// tested by tables and simulated a million times.
func TestPurePackagesHaveNoEffects(t *testing.T) {
	banned := []string{"os", "os/exec", "net", "net/http", "syscall", "golang.org/x/sys/unix",
		"github.com/vishvananda/netlink", "github.com/google/nftables", "math/rand", "crypto/rand", "sync"}
	for pkg, files := range load(t, false) {
		if l, _ := layerOf(pkg); l != pure {
			continue
		}
		for _, f := range files {
			for _, imp := range f.ast.Imports {
				path, _ := strconv.Unquote(imp.Path.Value)
				if slices.Contains(banned, path) {
					t.Errorf("%s is pure but imports %s", f.path, path)
				}
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s is pure but starts a goroutine", f.path)
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Sleep", "Since", "After", "NewTimer"}, n.Sel.Name) {
						t.Errorf("%s is pure but uses time.%s", f.path, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// TestThreadsAreLockedInOnePlace: a thread in another namespace must never return to the
// scheduler's pool, so only netns may lock threads, and userns, whose thread forks but enters no
// namespace.
func TestThreadsAreLockedInOnePlace(t *testing.T) {
	for pkg, files := range load(t, false) {
		if l, _ := layerOf(pkg); pkg == "internal/netns" || pkg == "internal/userns" || l == tests {
			continue
		}
		for _, f := range files {
			if strings.Contains(f.raw, "LockOSThread(") {
				t.Errorf("%s locks an OS thread: only internal/netns may", f.path)
			}
		}
	}
}

// TestNoShell: no input may ever reach a shell.
func TestNoShell(t *testing.T) {
	for pkg, files := range load(t, false) {
		if l, _ := layerOf(pkg); l == tests {
			continue
		}
		for _, f := range files {
			for _, sh := range []string{`"sh"`, `"/bin/sh"`, `"bash"`, `"/bin/bash"`} {
				if strings.Contains(f.raw, "Command("+sh) || strings.Contains(f.raw, "CommandContext(ctx, "+sh) {
					t.Errorf("%s runs a shell", f.path)
				}
			}
		}
	}
}
