package minimal

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/huskd/husk/internal/manifest"
)

func parsed(t *testing.T, text, node string) *corev1.Pod {
	t.Helper()
	file, err := manifest.Parse([]byte(text), manifest.Origin{File: "web.yaml", Source: "run", Node: node})
	if err != nil {
		t.Fatal(err)
	}
	return &file.Pods[0]
}

const web = `apiVersion: v1
kind: Pod
metadata:
  annotations:
    note: "yes"
  labels:
    app: web
  name: web
spec:
  containers:
  - command:
    - httpd
    - -f
    env:
    - name: PASSWORD
      valueFrom:
        secretKeyRef:
          key: password
          name: login
    - name: EMPTY
    image: localhost/web:1
    livenessProbe:
      httpGet:
        path: /healthz
        port: http
    name: app
    ports:
    - containerPort: 80
      hostPort: 8080
      name: http
    resources:
      limits:
        memory: 64Mi
    volumeMounts:
    - mountPath: /cache
      name: cache
  securityContext:
    runAsUser: 1000
  terminationGracePeriodSeconds: 3
  volumes:
  - emptyDir: {}
    name: cache
`

// TestPod: a manifest is written as it was given, without what huskd has added.
func TestPod(t *testing.T) {
	text := web
	pod := parsed(t, text, "node1")
	got, err := Pod(pod)
	if err != nil || string(got) != text {
		t.Errorf("%v\n%s\nwant\n%s", err, got, text)
	}
	again := parsed(t, string(got), "node1")
	if again.UID != pod.UID || !equality.Semantic.DeepEqual(again.Spec, pod.Spec) {
		t.Errorf("another pod: %v", again)
	}
}

// TestSaid: what a manifest says stays, even if a node ignores it; what a server has added doesn't.
func TestSaid(t *testing.T) {
	pod := parsed(t, "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {restartPolicy: OnFailure, priorityClassName: high, tolerations: [{operator: Exists}], containers: [{name: app, image: web, imagePullPolicy: Always}]}}", "node1")
	pod.ResourceVersion, pod.Status.Phase = "7", corev1.PodRunning
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{}}
	got, err := Pod(pod)
	for _, want := range []string{"namespace: shop", "restartPolicy: OnFailure", "priorityClassName: high", "operator: Exists", "imagePullPolicy: Always"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%v, no %s in\n%s", err, want, got)
		}
	}
	for _, extra := range []string{"uid", "resourceVersion", "status", "nodeName", "ephemeral", "dnsPolicy", "creationTimestamp"} {
		if strings.Contains(string(got), extra) {
			t.Errorf("%s in\n%s", extra, got)
		}
	}
}

// TestLarge: the number of attempts doesn't grow with the variables of a pod.
func TestLarge(t *testing.T) {
	pod := parsed(t, strings.Replace(web, "runAsUser: 1000", "runAsUser: 0", 1), "")
	for range 2000 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "A", Value: "b"})
	}
	if got, err := Pod(pod); err != nil || strings.Count(string(got), "value: b") != 2000 || !strings.Contains(string(got), "runAsUser: 0") {
		t.Errorf("%v\n%.2000s", err, got)
	}
}

func TestRefused(t *testing.T) {
	if _, err := Pod(&corev1.Pod{}); err == nil {
		t.Error("a pod without a name has a manifest")
	}
}
