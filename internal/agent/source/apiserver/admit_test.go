package apiserver

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/sysctl"
)

func list(cpu string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
}

func asks(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = list(cpu) }
}

func requests(name corev1.ResourceName, quantity string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(quantity)}
	}
}

func appArmor(kind corev1.AppArmorProfileType) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: kind}}
	}
}

func sysctls(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{}
		for _, name := range names {
			p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, corev1.Sysctl{Name: name, Value: "1"})
		}
	}
}

// initPort gives the pod an init container with host port 80.
func initPort(policy *corev1.ContainerRestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", RestartPolicy: policy, Ports: []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80}}}}
	}
}

func hostPort(ip string, port int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: ip, HostPort: port, ContainerPort: 80}}
	}
}

func affine(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
}

func term(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{"zone": "a", "size": "5"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoExecute}, {Key: "no", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("2"), "example.com/gpu": resource.MustParse("1"),
		}},
	}
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpExists})
	}
	for name, c := range map[string]struct {
		pod    []func(*corev1.Pod)
		others []*corev1.Pod
		want   string
	}{
		"fits":          {nil, nil, ""},
		"windows":       {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }}, nil, "PodOSNotSupported"},
		"exactly":       {[]func(*corev1.Pod){asks("1")}, []*corev1.Pod{pod("o", asks("1"))}, ""},
		"too much":      {[]func(*corev1.Pod){asks("1001m")}, []*corev1.Pod{pod("o", asks("1"))}, "OutOfcpu"},
		"nothing asked": {nil, []*corev1.Pod{pod("o", asks("3"))}, ""},
		"as a whole":    {[]func(*corev1.Pod){asks("1"), func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("3")} }}, nil, "OutOfcpu"},
		"overhead":      {[]func(*corev1.Pod){asks("2"), func(p *corev1.Pod) { p.Spec.Overhead = list("1m") }}, nil, "OutOfcpu"},
		"init": {[]func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: list("3")}}}
		}}, nil, "OutOfcpu"},
		"scalar":           {[]func(*corev1.Pod){requests("example.com/gpu", "1")}, []*corev1.Pod{pod("o", requests("example.com/gpu", "1"))}, "OutOfexample.com/gpu"},
		"one scalar":       {[]func(*corev1.Pod){requests("example.com/gpu", "1")}, nil, ""},
		"of the cluster":   {[]func(*corev1.Pod){requests("example.com/license", "1")}, nil, ""},
		"no huge pages":    {[]func(*corev1.Pod){requests("hugepages-1Gi", "1Gi")}, nil, "OutOfhugepages-1Gi"},
		"enormous":         {[]func(*corev1.Pod){asks("1T")}, nil, "OutOfcpu"},
		"labelled":         {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Labels = map[string]string{corev1.LabelOSStable: "windows"} }}, nil, "PodOSSelectorNodeLabelDoesNotMatch"},
		"AppArmor":         {[]func(*corev1.Pod){appArmor(corev1.AppArmorProfileTypeRuntimeDefault)}, nil, "AppArmor"},
		"no AppArmor":      {[]func(*corev1.Pod){appArmor(corev1.AppArmorProfileTypeUnconfined)}, nil, ""},
		"init port":        {[]func(*corev1.Pod){hostPort("", 80)}, []*corev1.Pod{pod("o", initPort(nil))}, ""},
		"sidecar port":     {[]func(*corev1.Pod){hostPort("", 80)}, []*corev1.Pod{pod("o", initPort(new(corev1.ContainerRestartPolicyAlways)))}, "NodePorts"},
		"sysctl first":     {[]func(*corev1.Pod){sysctls("kernel.msgmax"), asks("9")}, nil, "SysctlForbidden"},
		"safe sysctl":      {[]func(*corev1.Pod){sysctls("net.ipv4.tcp_rmem", "kernel/shm_rmid_forced")}, nil, ""},
		"OS first":         {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, asks("9")}, nil, "PodOSNotSupported"},
		"full":             {nil, []*corev1.Pod{pod("o"), pod("p")}, "OutOfpods"},
		"port":             {[]func(*corev1.Pod){hostPort("", 80)}, []*corev1.Pod{pod("o", hostPort("0.0.0.0", 80))}, "NodePorts"},
		"port there":       {[]func(*corev1.Pod){hostPort("192.0.2.1", 80)}, []*corev1.Pod{pod("o", hostPort("192.0.2.2", 80))}, ""},
		"port of mapped":   {[]func(*corev1.Pod){hostPort("::ffff:192.0.2.1", 80)}, []*corev1.Pod{pod("o", hostPort("192.0.2.1", 80))}, "NodePorts"},
		"other port":       {[]func(*corev1.Pod){hostPort("", 80)}, []*corev1.Pod{pod("o", hostPort("", 81))}, ""},
		"selector":         {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }}, nil, "NodeAffinity"},
		"selected":         {[]func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} }}, nil, ""},
		"in":               {[]func(*corev1.Pod){affine(term("zone", corev1.NodeSelectorOpIn, "b", "a"))}, nil, ""},
		"not in":           {[]func(*corev1.Pod){affine(term("zone", corev1.NodeSelectorOpNotIn, "a"))}, nil, "NodeAffinity"},
		"exists":           {[]func(*corev1.Pod){affine(term("none", corev1.NodeSelectorOpExists))}, nil, "NodeAffinity"},
		"one of the terms": {[]func(*corev1.Pod){affine(term("none", corev1.NodeSelectorOpExists), term("none", corev1.NodeSelectorOpDoesNotExist))}, nil, ""},
		"greater":          {[]func(*corev1.Pod){affine(term("size", corev1.NodeSelectorOpGt, "4"))}, nil, ""},
		"less":             {[]func(*corev1.Pod){affine(term("size", corev1.NodeSelectorOpLt, "5"))}, nil, "NodeAffinity"},
		"no number":        {[]func(*corev1.Pod){affine(term("zone", corev1.NodeSelectorOpGt, "4"))}, nil, "NodeAffinity"},
		"an empty term":    {[]func(*corev1.Pod){affine(corev1.NodeSelectorTerm{})}, nil, "NodeAffinity"},
		"by name":          {[]func(*corev1.Pod){affine(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"there"}}}})}, nil, "NodeAffinity"},
	} {
		why := candidate{pod: pod("p", append(c.pod, tolerant)...), node: node, others: c.others}.admit()
		if why.Reason != c.want || (why.Message == "") != (why.Reason == "") {
			t.Errorf("%s: %+v, want %q", name, why, c.want)
		}
	}
	for name, c := range map[string]struct {
		toleration corev1.Toleration
		want       string
	}{
		"none":           {corev1.Toleration{Key: "other", Operator: corev1.TolerationOpExists}, "TaintToleration"},
		"equal":          {corev1.Toleration{Key: "dedicated", Value: "x"}, ""},
		"another value":  {corev1.Toleration{Key: "dedicated", Value: "y"}, "TaintToleration"},
		"another effect": {corev1.Toleration{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoSchedule}, "TaintToleration"},
		"everything":     {corev1.Toleration{Operator: corev1.TolerationOpExists}, ""},
	} {
		p := pod("p", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{c.toleration} })
		if why := (candidate{pod: p, node: node}).admit(); why.Reason != c.want {
			t.Errorf("toleration %s: %+v, want %q", name, why, c.want)
		}
	}
}

func TestAdmitAllows(t *testing.T) {
	t.Parallel()
	list, err := sysctl.Allow([]string{"kernel.msg*"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"an unsafe sysctl": {pod("p", sysctls("kernel.msgmax")), ""},
		"another sysctl":   {pod("p", sysctls("kernel.msgmax", "kernel.sem")), "SysctlForbidden"},
		"the node's":       {pod("p", sysctls("kernel.msgmax"), func(p *corev1.Pod) { p.Spec.HostIPC = true }), "SysctlForbidden"},
		"AppArmor":         {pod("p", appArmor(corev1.AppArmorProfileTypeRuntimeDefault)), ""},
	} {
		if why := (candidate{pod: c.pod, node: &corev1.Node{}, sysctls: list, appArmor: true}).admit(); why.Reason != c.want {
			t.Errorf("%s: %+v, want %q", name, why, c.want)
		}
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	service := func(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
	}
	services := []*corev1.Service{
		service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}),
		service("team", "my-db", "fd00::1", corev1.ServicePort{Port: 5432}, corev1.ServicePort{Name: "dns-udp", Port: 53, Protocol: corev1.ProtocolUDP}),
		service("team", "headless", corev1.ClusterIPNone, corev1.ServicePort{Port: 1}),
		service("team", "portless", "10.0.0.3"),
		service("other", "elsewhere", "10.0.0.4", corev1.ServicePort{Port: 1}),
	}
	show := func(namespace string, links bool) string {
		var out []string
		o := criconfig.ServiceVariables(services, namespace, links)
		for _, key := range slices.Sorted(maps.Keys(o)) {
			out = append(out, key+"="+string(o[key]))
		}
		return strings.Join(out, "\n")
	}
	master := `KUBERNETES_PORT=tcp://10.0.0.1:443
KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443
KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1
KUBERNETES_PORT_443_TCP_PORT=443
KUBERNETES_PORT_443_TCP_PROTO=tcp
KUBERNETES_SERVICE_HOST=10.0.0.1
KUBERNETES_SERVICE_PORT=443
KUBERNETES_SERVICE_PORT_HTTPS=443`
	for _, namespace := range []string{"team", "default", "none"} {
		if got := show(namespace, false); got != master {
			t.Errorf("without links in %s:\n%s", namespace, got)
		}
	}
	if got, want := show("team", true), master+`
MY_DB_PORT=tcp://[fd00::1]:5432
MY_DB_PORT_53_UDP=udp://[fd00::1]:53
MY_DB_PORT_53_UDP_ADDR=fd00::1
MY_DB_PORT_53_UDP_PORT=53
MY_DB_PORT_53_UDP_PROTO=udp
MY_DB_PORT_5432_TCP=tcp://[fd00::1]:5432
MY_DB_PORT_5432_TCP_ADDR=fd00::1
MY_DB_PORT_5432_TCP_PORT=5432
MY_DB_PORT_5432_TCP_PROTO=tcp
MY_DB_SERVICE_HOST=fd00::1
MY_DB_SERVICE_PORT=5432
MY_DB_SERVICE_PORT_DNS_UDP=53`; got != want {
		t.Errorf("with links:\n%s", got)
	}
}

// TestUnderPressure: a node under pressure rejects new pods that aren't critical.
func TestUnderPressure(t *testing.T) {
	f := newFixture(t)
	f.expect()
	f.mu.Lock()
	f.pressure = []corev1.NodeConditionType{corev1.NodeMemoryPressure}
	f.mu.Unlock()
	f.Put(podList, pod("small", asks("1m")))
	f.Put(podList, pod("besteffort"))
	f.Put(podList, pod("critical", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2000001000)) }))
	f.Put(podList, pod("tolerant", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}}
	}))
	f.expect("critical", "small", "tolerant")
	f.eventually("rejected", func() bool { return f.rejected["besteffort"] == "Evicted: The node had condition: [MemoryPressure]. " })
}

// TestPreemption: a critical pod that lacks resources is admitted once those that make way for it
// have ended.
func TestPreemption(t *testing.T) {
	f := newFixture(t)
	f.node.Status.Allocatable = list("2")
	critical := func(p *corev1.Pod) { p.Spec.Priority = new(int32(2000001000)) }
	f.Put(podList, pod("small", asks("500m")))
	f.Put(podList, pod("large", asks("1500m")))
	f.expect("large", "small")
	f.Put(podList, pod("elsewhere", asks("2"), critical, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }))
	f.Put(podList, pod("huge", asks("3"), critical))
	f.eventually("rejected", func() bool {
		return strings.HasPrefix(f.rejected["elsewhere"], "NodeAffinity: ") && strings.HasPrefix(f.rejected["huge"], "UnexpectedAdmissionError: ") && len(f.preempted) == 0
	})
	f.Put(podList, pod("critical", asks("1"), critical))
	f.eventually("preempted", func() bool { return slices.Equal(f.preempted, []string{"uid-large"}) })
	f.Put(podList, pod("other")) // another pass, in which nothing more is evicted
	f.expect("large", "other", "small")
	f.Put(podList, pod("large", asks("1500m"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
	f.eventually("admitted", func() bool { return slices.Contains(f.names(), "critical") && len(f.preempted) == 1 })
}
