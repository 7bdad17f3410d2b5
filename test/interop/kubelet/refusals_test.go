package kubelet

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/test/node"
)

// rejected is the number of pods that are rejected at once.
const rejected = 30

// testRejectedAtOnce creates many pods at once that the node must reject. None of them may stay
// pending: nobody decides about a pod a second time.
func (o huskNode) testRejectedAtOnce() {
	pods, began := o.api.CoreV1().Pods("default"), time.Now()
	errs := make(chan error, rejected)
	for i := range rejected {
		var pod corev1.Pod
		o.must(yaml.UnmarshalStrict([]byte(simple(fmt.Sprintf("unsafe-%02d", i), "securityContext: {sysctls: [{name: kernel.msgmax, value: '8192'}]}", "command: [sleep]")), &pod))
		pod.Spec.NodeName = "node"
		go func() {
			_, err := pods.Create(o.t.Context(), &pod, metav1.CreateOptions{})
			errs <- err
		}()
	}
	for range rejected {
		o.must(<-errs)
	}
	created := time.Since(began)
	node.Eventually(o.t, 30*time.Second, func() string {
		failed, pending := 0, ""
		for name, p := range o.list() {
			switch {
			case !strings.HasPrefix(name, "unsafe-"):
			case p.Status.Phase == corev1.PodFailed && p.Status.Reason == "SysctlForbidden" && p.Status.Message != "":
				failed++
			default:
				pending = name + " is " + describe(p)
			}
		}
		if failed < rejected {
			return fmt.Sprintf("%d of %d pods are rejected, and %s", failed, rejected, pending)
		}
		return ""
	})
	o.t.Logf("%d pods created in %v, all rejected after %v", rejected, created.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// testRefusals creates pods with something that huskd doesn't support. They wait, don't stop what
// runs, and can be deleted, also after a restart of huskd. It returns the new huskd.
func (o huskNode) testRefusals() *node.Daemon {
	pods := o.api.CoreV1().Pods("default")
	state := func(list []corev1.ContainerStatus, name string) corev1.ContainerState {
		for _, s := range list {
			if s.Name == name {
				return s.State
			}
		}
		return corev1.ContainerState{}
	}
	waits := func(s corev1.ContainerState) bool {
		return s.Waiting != nil && s.Waiting.Reason == "NotSupported" && s.Waiting.Message != ""
	}

	// The API server accepts a terminationMessagePath that is no path.
	for _, name := range []string{"odd-a", "odd-b"} {
		o.create(simple(name, "", "command: [sleep], terminationMessagePath: relative"))
		p := o.await(name, func(p *corev1.Pod) bool { return waits(state(p.Status.ContainerStatuses, "c")) })
		if p.Status.Phase != corev1.PodPending {
			o.t.Errorf("%s: %s", name, describe(p))
		}
		o.awaitWarning(p, "NotSupported")
	}
	for _, name := range []string{"debugged-a", "debugged-b"} {
		o.create(simple(name, "", "command: [sleep, '1000']"))
		p := o.await(name, ready)
		for name, path := range map[string]string{"refused": "relative", "accepted": "/dev/termination-log"} {
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: name, Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "1000"}, TerminationMessagePath: path,
			}})
		}
		_, err := pods.UpdateEphemeralContainers(o.t.Context(), name, p, metav1.UpdateOptions{})
		o.must(err)
		after := o.await(name, func(p *corev1.Pod) bool {
			return waits(state(p.Status.EphemeralContainerStatuses, "refused")) && state(p.Status.EphemeralContainerStatuses, "accepted").Running != nil
		})
		if !ready(after) || containers(after)[0] != containers(p)[0] {
			o.t.Errorf("%s: %s", name, describe(after))
		}
		o.awaitWarning(p, "NotSupported")
	}
	remove := func(names ...string) {
		for _, name := range names {
			p, err := pods.Get(o.t.Context(), name, metav1.GetOptions{})
			o.must(err)
			o.must(pods.Delete(o.t.Context(), name, metav1.DeleteOptions{}))
			o.awaitDeleted(name, p.UID)
		}
	}
	remove("odd-a", "debugged-a")
	o.huskd.Kill()
	o.startNode()
	remove("debugged-b", "odd-b")
	return o.huskd
}
