package criconfig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/golden"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/identity"
)

func node() Node {
	return Node{
		Name: "node1", IPs: []string{"192.0.2.1", "2001:db8::1"}, Memory: 4 << 30, Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("5Gi")},
		HugePages: []string{"2MB", "1GB"}, RecursiveReadOnly: true,
		ResolvConf: []byte("# a comment\nnameserver 127.0.0.53\nnameserver 9.9.9.9\nsearch a.example b.example\noptions edns0 ndots:1\n"),
		Logs:       "/var/log/pods", Seccomp: "/etc/husk/seccomp",
	}
}

// pod returns a pod with the spec, which is in YAML.
func pod(t testing.TB, spec string) *corev1.Pod {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, uid: u1, labels: {app: web}, annotations: {note: x}}\nspec:\n" + spec
	pods, err := manifest.Parse([]byte(text), manifest.Origin{File: "pod.yaml", Node: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	return &pods.Pods[0]
}

const plain = "  containers: [{name: a, image: 'a:1'}]\n"

// container returns the config of the pod's container with the name.
func container(t testing.TB, p *corev1.Pod, name string, r Run) *runtimeapi.ContainerConfig {
	t.Helper()
	out, err := ContainerConfig(p, FindContainer(p, name), r, node())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func compare(t *testing.T, name string, m proto.Message) {
	t.Helper()
	raw, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var value any // decoded again because protojson's spacing is not stable
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatal(err)
	}
	golden.JSON(t, filepath.Join("testdata", name+".json"), value)
}

func TestGolden(t *testing.T) {
	t.Parallel()
	p := pod(t, plain)
	compare(t, "plain-sandbox", SandboxConfig(p, 0, node()))
	compare(t, "plain-container", container(t, p, "a", Run{ImageRef: "sha256:1"}))
	full, err := os.ReadFile("../testdata/good/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pods, err := manifest.Parse(full, manifest.Origin{Node: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "full-sandbox", SandboxConfig(&pods.Pods[0], 3, node()))
	compare(t, "full-container", container(t, &pods.Pods[0], "server", Run{
		Attempt: 2, PodIPs: []string{"10.1.0.5"}, ImageRef: "sha256:2",
		Volumes: map[string]string{"data": "/v/data", "host": "/srv/host", "implicit": "/v/implicit"},
		Mounts:  []*runtimeapi.Mount{{ContainerPath: "/etc/hosts", HostPath: "/p/hosts"}, {ContainerPath: "/data/", HostPath: "/hidden"}},
	}))
	compare(t, "full-sidecar", container(t, &pods.Pods[0], "proxy", Run{}))
}

// TestPodIsNotChanged checks that configs share no memory with the pod.
func TestPodIsNotChanged(t *testing.T) {
	t.Parallel()
	p := pod(t, "  securityContext: {supplementalGroups: [5]}\n"+plain)
	before := p.DeepCopy()
	out := SandboxConfig(p, 0, node())
	out.Labels["app"], out.Annotations["note"] = "changed", "changed"
	container(t, p, "a", Run{}).Labels["x"] = "changed"
	if identity.Hash(before) != identity.Hash(p) {
		t.Error("the pod was changed")
	}
}

func TestHostname(t *testing.T) {
	t.Parallel()
	p := pod(t, plain)
	for name, want := range map[string]string{
		"web": "web", strings.Repeat("a", 70): strings.Repeat("a", 63), strings.Repeat("a", 62) + "-b": strings.Repeat("a", 62),
		strings.Repeat("a", 61) + ".-bcd": strings.Repeat("a", 61),
	} {
		if p.Name = name; Hostname(p) != want {
			t.Errorf("%s: %s", name, Hostname(p))
		}
	}
	override := pod(t, "  hostnameOverride: db.example\n  hostname: x\n  subdomain: sub\n"+plain)
	if got := SandboxConfig(override, 0, node()).Hostname; got != "db.example" || !strings.Contains(string(HostsFile(override, []string{"10.1.0.2"}, nil, Node{})), "10.1.0.2\tdb.example\n") {
		t.Errorf("override: %q", got)
	}
	if got := SandboxConfig(pod(t, "  hostNetwork: true\n"+plain), 0, node()).Hostname; got != "" {
		t.Errorf("host network: %q", got)
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	const (
		ofPod       = runtimeapi.NamespaceMode_POD
		ofContainer = runtimeapi.NamespaceMode_CONTAINER
		ofNode      = runtimeapi.NamespaceMode_NODE
	)
	for spec, want := range map[string][3]runtimeapi.NamespaceMode{
		"":                                {ofPod, ofContainer, ofPod},
		"  hostNetwork: true\n":           {ofNode, ofContainer, ofPod},
		"  hostPID: true\n":               {ofPod, ofNode, ofPod},
		"  hostIPC: true\n":               {ofPod, ofContainer, ofNode},
		"  shareProcessNamespace: true\n": {ofPod, ofPod, ofPod},
	} {
		p := pod(t, spec+plain)
		for _, o := range []*runtimeapi.NamespaceOption{
			SandboxConfig(p, 0, node()).Linux.SecurityContext.NamespaceOptions, container(t, p, "a", Run{}).Linux.SecurityContext.NamespaceOptions,
		} {
			if got := [3]runtimeapi.NamespaceMode{o.Network, o.Pid, o.Ipc}; got != want {
				t.Errorf("%q: %v", spec, got)
			}
		}
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	ports := `
  initContainers:
  - {name: s, image: "a:1", restartPolicy: Always, ports: [{containerPort: 53, hostPort: 53, protocol: UDP}]}
  containers:
  - {name: a, image: "a:1", ports: [{containerPort: 80}, {containerPort: 81, hostPort: 8081, hostIP: 127.0.0.1}, {containerPort: 9, hostPort: 9, protocol: SCTP}]}
`
	var got []string
	for _, m := range SandboxConfig(pod(t, ports), 0, node()).PortMappings {
		got = append(got, strings.Join([]string{m.Protocol.String(), m.HostIp, divideUp(int64(m.HostPort), 1), divideUp(int64(m.ContainerPort), 1)}, " "))
	}
	if want := []string{"UDP  53 53", "TCP 127.0.0.1 8081 81", "SCTP  9 9"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := SandboxConfig(pod(t, "  hostNetwork: true\n  containers: [{name: a, image: 'a:1', ports: [{containerPort: 80}]}]\n"), 0, node()).PortMappings; got != nil {
		t.Errorf("host network: %v", got)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	p := pod(t, `
  containers:
  - name: a
    image: a:1
    command: [run, "$(NAME)", "$(NONE)", "$$(NAME)"]
    args: ["$(LATE)"]
    resources: {limits: {cpu: 1500m, memory: 65Mi}, requests: {cpu: 100m}}
    env:
    - {name: EARLY, value: "$(LATE)"}
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: LATE, value: "x-$(NAME)-$(NAME)"}
    - {name: LATE, value: "$(LATE)!"}
    - {name: NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: NOLABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['nope']"}}}
    - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: HOSTS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: MILLI, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Gi}}}
    - {name: MEMBYTES, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    - {name: REQ, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
    - {name: OTHERCPU, valueFrom: {resourceFieldRef: {containerName: b, resource: limits.cpu}}}
    - {name: OTHERMEM, valueFrom: {resourceFieldRef: {containerName: b, resource: limits.memory}}}
    - {name: OTHERREQ, valueFrom: {resourceFieldRef: {containerName: b, resource: requests.memory}}}
    - {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: DISK, valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage, divisor: 1Gi}}}
    - {name: DISKREQ, valueFrom: {resourceFieldRef: {containerName: b, resource: requests.ephemeral-storage, divisor: 1Mi}}}
    - {name: HUGE, valueFrom: {resourceFieldRef: {containerName: b, resource: limits.hugepages-2Mi, divisor: 1Mi}}}
  - {name: b, resources: {limits: {hugepages-2Mi: 4Mi}, requests: {ephemeral-storage: 3Mi}}, image: "a:1"}
`)
	p.Spec.ServiceAccountName = "robot" // which only an API server sets
	out := container(t, p, "a", Run{PodIPs: []string{"10.0.0.9", "fd00::9"}})
	var got []string
	for _, e := range out.Envs {
		got = append(got, e.Key+"="+string(e.Value))
	}
	want := []string{
		"EARLY=$(LATE)", "NAME=web", "LATE=x-web-web", "LATE=x-web-web!", "NS=shop", "UID=u1", "LABEL=web", "NOLABEL=", "NOTE=x",
		"NODE=node1", "HOST=192.0.2.1", "HOSTS=192.0.2.1,2001:db8::1", "IP=10.0.0.9", "IPS=10.0.0.9,fd00::9",
		"CPU=2", "MILLI=1500", "MEM=1", "MEMBYTES=68157440", "REQ=100", "OTHERCPU=2", "OTHERMEM=4294967296", "OTHERREQ=0",
		"ACCOUNT=robot", "DISK=5", "DISKREQ=3", "HUGE=4",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
	if got := slices.Concat(out.Command, out.Args); !slices.Equal(got, []string{"run", "web", "$(NONE)", "$(NAME)", "x-web-web!"}) {
		t.Errorf("%q", got)
	}
	limited := pod(t, "  resources: {limits: {cpu: 700m}}\n  containers: [{name: a, image: 'a:1', env: [{name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}]}]\n")
	if got := string(container(t, limited, "a", Run{}).Envs[0].Value); got != "700" {
		t.Errorf("with a limit of the pod: %s", got)
	}
	hostNetwork := pod(t, "  hostNetwork: true\n  containers: [{name: a, image: 'a:1', env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]\n")
	if got := string(container(t, hostNetwork, "a", Run{}).Envs[0].Value); got != "192.0.2.1" {
		t.Errorf("host network: %s", got)
	}
}

func TestDNS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, servers, searches, options string }{
		{"", "9.9.9.9", "a.example b.example", "edns0 ndots:1"},
		{"  hostNetwork: true\n", "127.0.0.53 9.9.9.9", "a.example b.example", "edns0 ndots:1"},
		{"  dnsPolicy: Default\n", "9.9.9.9", "a.example b.example", "edns0 ndots:1"},
		{"  dnsPolicy: None\n  dnsConfig: {nameservers: [1.1.1.1]}\n", "1.1.1.1", "", ""},
		{"  dnsConfig: {nameservers: [1.1.1.1, 9.9.9.9, 8.8.8.8], searches: [c.example, a.example], options: [{name: ndots, value: '5'}, {name: rotate}]}\n",
			"9.9.9.9 1.1.1.1 8.8.8.8", "a.example b.example c.example", "edns0 ndots:5 rotate"},
	} {
		got := SandboxConfig(pod(t, c.spec+plain), 0, node()).DnsConfig
		if strings.Join(got.Servers, " ") != c.servers || strings.Join(got.Searches, " ") != c.searches || strings.Join(got.Options, " ") != c.options {
			t.Errorf("%q: %v", c.spec, got)
		}
	}
	n := node()
	n.ResolvConf = []byte("nameserver\nnameserver x\nnameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4\ndomain d\nsearch e f")
	if got := SandboxConfig(pod(t, plain), 0, n).DnsConfig; len(got.Servers) != 3 || strings.Join(got.Searches, " ") != "e f" {
		t.Errorf("%v", got)
	}
}

func TestHostsFile(t *testing.T) {
	t.Parallel()
	aliases := "  hostAliases: [{ip: 10.0.0.1, hostnames: [db, cache]}]\n"
	got := string(HostsFile(pod(t, aliases+plain), []string{"10.1.0.2", "fd00::2"}, nil, Node{}))
	if !strings.HasPrefix(got, "# Kubernetes-managed hosts file.\n127.0.0.1\t") {
		t.Errorf("the file is %q", got)
	}
	for _, line := range []string{"127.0.0.1\tlocalhost\n", "10.1.0.2\tweb\n", "fd00::2\tweb\n", "10.0.0.1\tdb\tcache\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("no %q in %q", line, got)
		}
	}
	if got := string(HostsFile(pod(t, "  hostNetwork: true\n"+aliases+plain), nil, []byte("1.2.3.4 node"), Node{})); got != "# Kubernetes-managed hosts file (host network).\n1.2.3.4 node\n10.0.0.1\tdb\tcache\n" {
		t.Errorf("host network: %q", got)
	}
}

func TestSecurity(t *testing.T) {
	t.Parallel()
	p := pod(t, `
  securityContext:
    runAsUser: 1
    runAsGroup: 2
    seccompProfile: {type: Unconfined}
    appArmorProfile: {type: RuntimeDefault}
    seLinuxOptions: {level: s0}
  containers:
  - {name: plain, image: "a:1"}
  - name: own
    image: a:1
    securityContext:
      runAsUser: 5
      runAsGroup: 6
      seccompProfile: {type: Localhost, localhostProfile: p.json}
      appArmorProfile: {type: Localhost, localhostProfile: web}
      seLinuxOptions: {type: t}
      procMount: Unmasked
      allowPrivilegeEscalation: true
  - {name: mighty, image: "a:1", securityContext: {privileged: true}}
`)
	s := container(t, p, "plain", Run{}).Linux.SecurityContext
	if s.RunAsUser.GetValue() != 1 || s.RunAsGroup.GetValue() != 2 || s.Seccomp.ProfileType != runtimeapi.SecurityProfile_Unconfined ||
		s.Apparmor.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault || s.SelinuxOptions.Level != "s0" || len(s.MaskedPaths) == 0 || s.Privileged {
		t.Errorf("inherited from the pod: %v", s)
	}
	s = container(t, p, "own", Run{}).Linux.SecurityContext
	if s.RunAsUser.GetValue() != 5 || s.RunAsGroup.GetValue() != 6 || s.Seccomp.LocalhostRef != "/etc/husk/seccomp/p.json" ||
		s.Apparmor.LocalhostRef != "web" || s.SelinuxOptions.Level != "" || s.SelinuxOptions.Type != "t" || len(s.MaskedPaths) > 0 || s.NoNewPrivs {
		t.Errorf("set on the container: %v", s)
	}
	if !SandboxConfig(p, 0, node()).Linux.SecurityContext.Privileged || !container(t, p, "mighty", Run{}).Linux.SecurityContext.Privileged {
		t.Error("a pod with a privileged container is not privileged")
	}
	if SandboxConfig(pod(t, plain), 0, node()).Linux.SecurityContext.Privileged {
		t.Error("a pod without a privileged container is privileged")
	}
}

func TestSeccompDefault(t *testing.T) {
	t.Parallel()
	unnamed := pod(t, plain)
	for without, want := range map[bool]runtimeapi.SecurityProfile_ProfileType{false: runtimeapi.SecurityProfile_RuntimeDefault, true: runtimeapi.SecurityProfile_Unconfined} {
		n := node()
		n.SeccompUnconfined = without
		out, err := ContainerConfig(unnamed, &unnamed.Spec.Containers[0], Run{}, n)
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Linux.SecurityContext.Seccomp.ProfileType; got != want {
			t.Errorf("a container that names no seccomp profile gets %s, want %s", got, want)
		}
	}
}

func TestUser(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pod, own, image string
		uid             int64 // -1 is none
		username        string
		err             string
	}{
		{"", "", "nginx", -1, "", ""}, // the runtime uses the image's user
		{"", "runAsGroup: 5", "", 0, "", ""},
		{"", "runAsGroup: 5", "7:8", 7, "", ""},
		{"", "runAsGroup: 5", "nginx:web", -1, "nginx", ""},
		{"", "runAsNonRoot: true", "1000", -1, "", ""},
		{"runAsNonRoot: true", "runAsUser: 3", "", 3, "", ""},
		{"runAsNonRoot: true", "runAsNonRoot: false", "", -1, "", ""},
		{"runAsNonRoot: true", "", "", -1, "", "but the image runs as root"},
		{"runAsNonRoot: true", "", "0:5", -1, "", "but the image runs as root"},
		{"", "runAsNonRoot: true", "nginx", -1, "", `the user ID of the image's user "nginx" is not known`},
		{"runAsNonRoot: true", "runAsUser: 0", "5", -1, "", "runAsUser is 0"},
	} {
		p := pod(t, "  securityContext: {"+c.pod+"}\n  containers: [{name: a, image: 'a:1', securityContext: {"+c.own+"}}]\n")
		out, err := ContainerConfig(p, &p.Spec.Containers[0], Run{ImageUser: c.image}, node())
		if c.err != "" {
			if err == nil || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(err.Error(), `container "a": securityContext.runAsNonRoot: `) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		s, uid := out.Linux.SecurityContext, int64(-1)
		if s.RunAsUser != nil {
			uid = s.RunAsUser.Value
		}
		if uid != c.uid || s.RunAsUsername != c.username {
			t.Errorf("%+v: user %d, name %q", c, uid, s.RunAsUsername)
		}
	}
	sandbox := SandboxConfig(pod(t, "  securityContext: {runAsGroup: 5}\n"+plain), 0, node()).Linux.SecurityContext
	if sandbox.RunAsGroup != nil {
		t.Error("the sandbox has a group but no user")
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		resources          string
		shares, quota, mem int64
		score              int64
		class              corev1.PodQOSClass
	}{
		{"", 2, 0, 0, 1000, corev1.PodQOSBestEffort},
		{"requests: {cpu: 1}", 1024, 0, 0, 999, corev1.PodQOSBurstable},
		{"requests: {cpu: 1m}", 2, 0, 0, 999, corev1.PodQOSBurstable},
		{"limits: {cpu: 1m}", 2, 1000, 0, 999, corev1.PodQOSBurstable},
		{"limits: {cpu: 500m}", 512, 50000, 0, 999, corev1.PodQOSBurstable},
		{"requests: {cpu: 1000}", 262144, 0, 0, 999, corev1.PodQOSBurstable},
		{"limits: {memory: 1Gi}", 2, 0, 1 << 30, 750, corev1.PodQOSBurstable},
		{"requests: {memory: 1Gi}, limits: {memory: 2Gi}", 2, 0, 2 << 30, 750, corev1.PodQOSBurstable},
		{"requests: {memory: 8Gi}", 2, 0, 0, 3, corev1.PodQOSBurstable},
		{"limits: {cpu: 1, memory: 1Gi}", 1024, 100000, 1 << 30, -997, corev1.PodQOSGuaranteed},
		{"requests: {ephemeral-storage: 1Gi}", 2, 0, 0, 1000, corev1.PodQOSBestEffort},
	} {
		p := pod(t, "  containers: [{name: a, image: 'a:1', resources: {"+c.resources+"}}]\n")
		r := container(t, p, "a", Run{}).Linux.Resources
		if r.CpuShares != c.shares || r.CpuQuota != c.quota || r.MemoryLimitInBytes != c.mem || r.OomScoreAdj != c.score || QOS(p) != c.class {
			t.Errorf("%q: %v, %s", c.resources, r, QOS(p))
		}
	}
	p := pod(t, plain)
	n := node()
	n.Memory, n.Unified = 0, true
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	out, err := ContainerConfig(p, &p.Spec.Containers[0], Run{}, n)
	if err != nil || out.Linux.Resources.OomScoreAdj != 999 || out.Linux.Resources.Unified["memory.oom.group"] != "1" {
		t.Errorf("%v, %v", out, err)
	}
}

func TestHugePages(t *testing.T) {
	t.Parallel()
	p := pod(t, "  containers: [{name: a, image: 'a:1', resources: {limits: {hugepages-2Mi: 4Mi, hugepages-64Ki: 128Ki}}}]\n")
	var got []string
	for _, h := range container(t, p, "a", Run{}).Linux.Resources.HugepageLimits {
		got = append(got, h.PageSize+"="+divideUp(int64(h.Limit), 1))
	}
	if !slices.Equal(got, []string{"1GB=0", "2MB=4194304", "64KB=131072"}) {
		t.Errorf("%q", got)
	}
	for bytes, want := range map[int64]string{1: "1B", 2 << 10: "2KB", 2 << 20: "2MB", 1 << 30: "1GB", 3 << 19: "1536KB"} {
		if got := pageSize(bytes); got != want {
			t.Errorf("%d: %s", bytes, got)
		}
	}
}

func TestPodResources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		init, containers string
		shares, quota    int64
		memory           int64
	}{
		{"", "a 100m 1 100", 102, 100000, 100},
		{"", "a 1 1 100;b 1 2 50", 2048, 300000, 150},
		{"", "a 1 1 100;b 1 0 0", 2048, 0, 0},
		{"i 3 3 500", "a 1 1 100", 3072, 300000, 500},
		{"s! 1 1 10;i 3 3 500", "a 1 1 100", 4096, 400000, 510},
		{"i 3 3 500;s! 1 1 10", "a 1 1 100", 3072, 300000, 500},
		{"i 1 0 0", "a 1 1 100", 1024, 0, 0},
	} {
		list := func(text string) string {
			var out []string
			for _, c := range strings.Split(text, ";") {
				f := strings.Fields(c)
				if len(f) == 0 {
					continue
				}
				policy, limits := "", ""
				if name, ok := strings.CutSuffix(f[0], "!"); ok {
					f[0], policy = name, ", restartPolicy: Always"
				}
				if f[2] != "0" {
					limits = "cpu: " + f[2] + ", memory: " + f[3]
				}
				out = append(out, "{name: "+f[0]+", image: 'a:1', resources: {requests: {cpu: "+f[1]+"}, limits: {"+limits+"}}"+policy+"}")
			}
			return "[" + strings.Join(out, ", ") + "]"
		}
		p := pod(t, "  initContainers: "+list(c.init)+"\n  containers: "+list(c.containers)+"\n")
		for range 2 { // computing the sum must not modify the pod
			r := SandboxConfig(p, 0, node()).Linux.Resources
			if r.CpuShares != c.shares || r.CpuQuota != c.quota || r.MemoryLimitInBytes != c.memory {
				t.Errorf("%q %q: %v", c.init, c.containers, r)
			}
		}
	}
}

func TestSidecarOOMScore(t *testing.T) {
	t.Parallel()
	p := pod(t, `
  initContainers: [{name: s, image: "a:1", restartPolicy: Always}, {name: i, image: "a:1"}]
  containers: [{name: a, image: "a:1", resources: {requests: {memory: 1Gi}}}]
`)
	for name, want := range map[string]int64{"a": 750, "s": 750, "i": 999} {
		if got := container(t, p, name, Run{}).Linux.Resources.OomScoreAdj; got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	p := pod(t, `
  containers:
  - name: a
    image: a:1
    securityContext: {privileged: true}
    volumeMounts:
    - {name: v, mountPath: /a/}
    - {name: v, mountPath: /b, readOnly: true, recursiveReadOnly: Enabled}
    - {name: v, mountPath: /c, readOnly: true, recursiveReadOnly: Disabled}
    - {name: v, mountPath: /d, readOnly: true, recursiveReadOnly: IfPossible}
    - {name: v, mountPath: /e, mountPropagation: Bidirectional}
    - {name: v, mountPath: /f, mountPropagation: None}
  volumes: [{name: v, emptyDir: {}}]
`)
	r := Run{Volumes: map[string]string{"v": "/v"}}
	m := container(t, p, "a", r).Mounts
	if m[0].ContainerPath != "/a" || m[0].HostPath != "/v" || m[0].Readonly || !m[1].RecursiveReadOnly || m[2].RecursiveReadOnly || !m[3].RecursiveReadOnly ||
		m[4].Propagation != runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL || m[5].Propagation != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		t.Errorf("%v", m)
	}
	n := node()
	n.RecursiveReadOnly = false
	if _, err := ContainerConfig(p, &p.Spec.Containers[0], r, n); err == nil || !strings.Contains(err.Error(), "volumeMounts[1].recursiveReadOnly") {
		t.Errorf("%v", err)
	}
	if _, err := ContainerConfig(p, &p.Spec.Containers[0], Run{}, n); err == nil || !strings.Contains(err.Error(), `volume "v" is not on this node`) {
		t.Errorf("%v", err)
	}
}

func TestContainerHash(t *testing.T) {
	t.Parallel()
	a, b := corev1.Container{Name: "a", Image: "a:1"}, corev1.Container{Name: "a", Image: "a:2"}
	if ContainerHash(&a) == ContainerHash(&b) || len(ContainerHash(&a)) != 8 || ContainerHash(&a) != ContainerHash(a.DeepCopy()) {
		t.Errorf("%s %s", ContainerHash(&a), ContainerHash(&b))
	}
}

// TestPodLevelResources has resources of the pod as a whole, from which others follow.
func TestPodLevelResources(t *testing.T) {
	t.Parallel()
	p := pod(t, `
  resources: {limits: {cpu: '2', memory: 64Mi}}
  containers:
  - {name: a, image: "a:1", resources: {requests: {cpu: 100m}, limits: {memory: 16Mi, hugepages-2Mi: 4Mi}}}
  - {name: b, image: "a:1", resources: {requests: {cpu: 200m}}}
`)
	a, b := Resources(p, FindContainer(p, "a"), node()), Resources(p, FindContainer(p, "b"), node())
	if a.GetMemoryLimitInBytes() != 16<<20 || b.GetMemoryLimitInBytes() != 64<<20 || a.GetCpuQuota() != 200000 || b.GetCpuQuota() != 200000 {
		t.Errorf("the containers' limits are %v and %v", a, b)
	}
	all := Allocated(p)
	for name, want := range map[corev1.ResourceName][2]string{corev1.ResourceCPU: {"300m", "2"}, corev1.ResourceMemory: {"16Mi", "64Mi"}, "hugepages-2Mi": {"4Mi", "4Mi"}} {
		request, limit := all.Requests[name], all.Limits[name]
		if request.Cmp(resource.MustParse(want[0])) != 0 || limit.Cmp(resource.MustParse(want[1])) != 0 {
			t.Errorf("%s: request %s, limit %s, want %v", name, request.String(), limit.String(), want)
		}
	}
	plainPod := pod(t, "  containers: [{name: a, image: 'a:1', resources: {requests: {cpu: 100m}}}, {name: b, image: 'a:1', resources: {requests: {cpu: 200m}, limits: {cpu: 1}}}]\n")
	if all := Allocated(plainPod); all.Requests.Cpu().MilliValue() != 300 || len(all.Limits) != 0 {
		t.Errorf("without resources of the pod: %v", all)
	}
}
