package kubelet

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime holds the sandboxes and containers that the kubelet has made in huskd. husk ps doesn't
// show them.
type runtime struct {
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
}

// runtime lists the sandboxes and containers by CRI.
func (m *machine) runtime() (r runtime) {
	m.t.Helper()
	must := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatal(err)
		}
	}
	conn, err := grpc.NewClient("unix://"+m.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	defer conn.Close()
	c := runtimeapi.NewRuntimeServiceClient(conn)
	sandboxes, err := c.ListPodSandbox(m.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	must(err)
	containers, err := c.ListContainers(m.t.Context(), &runtimeapi.ListContainersRequest{})
	must(err)
	return runtime{sandboxes.Items, containers.Containers}
}

// String lists all sandboxes and containers.
func (r runtime) String() string {
	var b strings.Builder
	for _, s := range r.sandboxes {
		fmt.Fprintln(&b, s.State, s.Id, s.Metadata)
	}
	for _, c := range r.containers {
		fmt.Fprintln(&b, c.State, c.Id, c.PodSandboxId, c.Metadata)
	}
	return b.String()
}

// diff returns how r differs from the API server's pods, or "". It expects one ready sandbox for
// each pod, and the running containers of the pods. What has ended doesn't count: the kubelet
// removes it later.
func (r runtime) diff(pods []corev1.Pod) string {
	var got, want []string
	for _, s := range r.sandboxes {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			got = append(got, s.Metadata.Uid)
		}
	}
	for _, p := range pods {
		want = append(want, string(p.UID))
	}
	for _, c := range r.containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			got = append(got, "husk://"+c.Id)
		}
	}
	want = append(want, instances(pods)...)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("huskd has ready sandboxes and running containers\n%s\nand the API server's pods are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return ""
}
