package podstatus

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/cluster/clustertest"
)

// TestRejectedMeanwhile has a pod arrive, and be rejected, while the server is slow to take the
// status of another.
func TestRejectedMeanwhile(t *testing.T) {
	f := start(t)
	arrived, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/web/") {
			once.Do(func() { close(arrived) })
			<-answer
		}
		return false
	})
	why := admission.Refusal{Reason: "SysctlForbidden", Message: "no"}
	f.listed(onServer(parse(t, web)))
	f.Reject(onServer(parse(t, web)), why)
	<-arrived
	later := onServer(parse(t, strings.ReplaceAll(web, "web", "later")))
	f.Put(list, later)
	clustertest.Eventually(t, func() string {
		if len(f.Pods.All()) != 2 {
			return "the other pod is not in the list"
		}
		return ""
	})
	f.Reject(later, why)
	close(answer)
	f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/later/status", phase("Failed"))
	f.Forget(later.UID)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused[later.UID] != nil {
		t.Error("the refusal of a pod that is gone is kept")
	}
}

// TestDeletedBeforeItsRejectionWasSent: whoever waits for the pod's end by a finalizer sees how it
// ended.
func TestDeletedBeforeItsRejectionWasSent(t *testing.T) {
	f := start(t)
	rejected, unknown := onServer(parse(t, web)), onServer(parse(t, strings.ReplaceAll(web, "web", "unknown")))
	rejected.Status.Phase, unknown.Status.Phase = corev1.PodPending, corev1.PodPending
	f.Reject(rejected, admission.Refusal{Reason: "OutOfcpu", Message: "there is none"})
	for _, pod := range []*corev1.Pod{rejected, unknown} {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		f.Put(list, pod)
	}
	body := f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/web/status", phase("Failed"))
	if s := body["status"].(map[string]any); s["reason"] != "OutOfcpu" {
		t.Errorf("the status is %v", s)
	}
	body = f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/unknown/status", phase("Failed"))
	if s := body["status"].(map[string]any); !strings.Contains(fmt.Sprint(s["containerStatuses"]), "exitCode:137") {
		t.Errorf("the status is %v", s)
	}
	for _, name := range []string{"web", "unknown"} {
		f.sent(http.MethodDelete, "/api/v1/namespaces/default/pods/"+name, nil)
	}
}

// TestNotTaken: a status that the server hasn't taken, because of other writers or because it
// doesn't show the pod, is sent again without any change of the pod.
func TestNotTaken(t *testing.T) {
	for reason, code := range map[metav1.StatusReason]int{metav1.StatusReasonConflict: http.StatusConflict, metav1.StatusReasonNotFound: http.StatusNotFound} {
		t.Run(string(reason), func(t *testing.T) {
			f := startWith(t, func(r *Reporter) { r.retry = 10 * time.Millisecond })
			var refused atomic.Bool
			f.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPatch || refused.Swap(true) {
					return false
				}
				clustertest.RespondError(w, code, reason)
				return true
			})
			pod := parse(t, web)
			f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Run, Status: podplan.Status{Phase: podplan.PhaseRunning}})
			f.Put(list, onServer(pod))
			f.within(10*time.Second, func() string {
				for _, r := range f.Requests() {
					if r.Method == http.MethodPatch {
						return ""
					}
				}
				return "the status isn't sent again"
			})
		})
	}
}

// TestDeletedMeanwhile: a pod that is deleted while the statuses of others are sent stays ready, as
// its containers serve until they end.
func TestDeletedMeanwhile(t *testing.T) {
	f := start(t)
	serving := podplan.Status{Phase: podplan.PhaseRunning, SandboxReady: true, Initialized: true, Serving: true}
	pods := map[string]*corev1.Pod{}
	for _, name := range []string{"web", "other"} {
		pods[name] = parse(t, strings.ReplaceAll(web, "web", name))
		f.Put(list, onServer(pods[name]))
	}
	f.within(10*time.Second, func() string {
		if n := len(f.Pods.All()); n < len(pods) {
			return fmt.Sprint(n, " pods are known")
		}
		return ""
	})
	for name := range pods {
		status := serving
		status.Ready = true
		f.pods.set(agent.Pod{Manifest: pods[name], Source: "api:x", Want: podplan.Run, Status: status})
	}
	var once sync.Once
	f.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch {
			return false
		}
		once.Do(func() {
			name := "web"
			if strings.Contains(r.URL.Path, "/web/") {
				name = "other"
			}
			gone := onServer(pods[name])
			gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			f.Put(list, gone)
			f.within(10*time.Second, func() string {
				if pod, ok := f.Pods.Get("default", name); !ok || pod.DeletionTimestamp == nil {
					return name + " isn't deleted"
				}
				return ""
			})
			f.pods.set(agent.Pod{Manifest: pods[name], Source: "api:x", Want: podplan.Stop, Status: serving})
		})
		return false
	})
	f.Nudge()
	for _, name := range []string{"web", "other"} {
		body := f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/"+name+"/status", phase("Running"))
		if strings.Contains(fmt.Sprint(body), "ContainersNotReady") {
			t.Errorf("the status of %s is %v", name, body["status"])
		}
	}
}

// TestComparesWhileBusy: the status of a pod is compared with the server's also while other pods
// keep changing.
func TestComparesWhileBusy(t *testing.T) {
	f := startWith(t, func(r *Reporter) { r.resync = 200 * time.Millisecond })
	pod := parse(t, web)
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Run, Status: podplan.Status{Phase: podplan.PhaseRunning}})
	f.Put(list, onServer(pod))
	// The server answers that it has taken the status, and never shows it.
	f.within(20*time.Second, func() string {
		f.Nudge()
		sent := 0
		for _, r := range f.Requests() {
			if r.Method == http.MethodPatch && strings.Contains(string(r.Body), `"phase":"Running"`) {
				sent++
			}
		}
		if sent < 3 {
			return fmt.Sprintf("the status was sent %d times", sent)
		}
		return ""
	})
}

// TestKeepsTimes: the times of a status that the server doesn't show yet don't change.
func TestKeepsTimes(t *testing.T) {
	t.Parallel()
	pod := onServer(parse(t, web))
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1, 0)}}
	first := *pod.Status.DeepCopy()
	first.StartTime = &metav1.Time{Time: time.Unix(5, 0)}
	c := conditions{&first, pod, time.Unix(5, 0)}
	c.put(corev1.PodScheduled, true, "", "")
	c.put(corev1.PodReady, true, "", "")
	next := report{status: first}.onto(pod).Status
	c = conditions{&next, pod, time.Unix(9, 0)}
	c.put(corev1.PodScheduled, true, "", "")
	c.put(corev1.PodReady, true, "", "")
	if next.StartTime.Unix() != 5 || condition(next, corev1.PodReady).LastTransitionTime.Unix() != 5 || condition(next, corev1.PodScheduled).LastTransitionTime.Unix() != 1 {
		t.Errorf("the status is %+v", next)
	}
	if pod.Status.StartTime != nil || len(pod.Status.Conditions) != 1 {
		t.Errorf("the server's pod was changed: %+v", pod.Status)
	}
}
