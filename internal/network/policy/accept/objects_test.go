package accept

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPod(t *testing.T) {
	created, started := metav1.Unix(1, 0), metav1.Unix(2, 0)
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", Labels: map[string]string{"a": "b"}, CreationTimestamp: created}}
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 79}, {Name: "web", ContainerPort: 80}}}, {Ports: []corev1.ContainerPort{{Name: "dns", Protocol: "UDP", ContainerPort: 53}}}}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}}
		change(p)
		return p
	}
	const whole = "n/p a=b [10.0.0.1 fd00::1] [{web 6 80} {dns 17 53}] 2"
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"all":                      {func(*corev1.Pod) {}, whole},
		"pending":                  {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, whole},
		"being deleted":            {func(p *corev1.Pod) { p.DeletionTimestamp = &started }, whole},
		"not started":              {func(p *corev1.Pod) { p.Status.StartTime = nil }, "n/p a=b [10.0.0.1 fd00::1] [{web 6 80} {dns 17 53}] 1"},
		"one address":              {func(p *corev1.Pod) { p.Status.PodIPs = nil }, "n/p a=b [10.0.0.1] [{web 6 80} {dns 17 53}] 2"},
		"no address":               {func(p *corev1.Pod) { p.Status.PodIPs, p.Status.PodIP = nil, "" }, "n/p a=b [] [{web 6 80} {dns 17 53}] 2"},
		"not an address":           {func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "x"}} }, "n/p a=b [] [{web 6 80} {dns 17 53}] 2"},
		"an address in IPv6":       {func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "::ffff:10.0.0.1"}} }, "n/p a=b [10.0.0.1] [{web 6 80} {dns 17 53}] 2"},
		"succeeded":                {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, ""},
		"failed":                   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, ""},
		"the node's network":       {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, ""},
		"a port that can't be":     {func(p *corev1.Pod) { p.Spec.Containers[0].Ports[1].ContainerPort = 65536 }, "n/p a=b [10.0.0.1 fd00::1] [{dns 17 53}] 2"},
		"an unknown protocol":      {func(p *corev1.Pod) { p.Spec.Containers[0].Ports[1].Protocol = "ICMP" }, "n/p a=b [10.0.0.1 fd00::1] [{dns 17 53}] 2"},
		"a sidecar":                {func(p *corev1.Pod) { p.Spec.InitContainers = sidecar(new(corev1.ContainerRestartPolicyAlways)) }, "n/p a=b [10.0.0.1 fd00::1] [{web 6 80} {dns 17 53} {side 132 7}] 2"},
		"an init container":        {func(p *corev1.Pod) { p.Spec.InitContainers = sidecar(nil) }, whole},
		"in the default namespace": {func(p *corev1.Pod) { p.Namespace = "" }, "default" + whole[1:]},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if p := Pod(pod(c.change)); p != nil {
				got = fmt.Sprintf("%s %v %v %v %d", p.Key(), p.Labels, p.Addresses, p.Ports, p.Started.Sub(time.Unix(0, 0))/time.Second)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func sidecar(restart *corev1.ContainerRestartPolicy) []corev1.Container {
	return []corev1.Container{{RestartPolicy: restart, Ports: []corev1.ContainerPort{{Name: "side", Protocol: "SCTP", ContainerPort: 7}}}}
}

func TestNode(t *testing.T) {
	n := Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeExternalIP, Address: "2001:db8::1"},
	}}})
	if got := fmt.Sprintf("%s %v %v", n.Name, n.Labels, n.Addresses); got != "n a=b [192.0.2.1 2001:db8::1]" {
		t.Errorf("got %q", got)
	}
}
