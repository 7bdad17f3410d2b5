package cri

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/pod"
)

// running returns running containers as a kubelet creates them.
func running(n int) []container.Status {
	list := make([]container.Status, n)
	for i := range list {
		list[i] = container.Status{
			ID: pod.NewID(), Sandbox: pod.NewID(), State: containerstate.Running, ImageID: "sha256:" + pod.NewID(),
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "localhost/web:1"},
				Labels: map[string]string{
					"io.kubernetes.container.name": "c", "io.kubernetes.pod.name": fmt.Sprint("pod-", i),
					"io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": pod.NewID(),
				},
				Annotations: map[string]string{
					"io.kubernetes.container.hash": "5f3c1a2b", "io.kubernetes.container.restartCount": "0",
					"io.kubernetes.container.terminationMessagePolicy": "File", "io.kubernetes.pod.terminationGracePeriod": "30",
				},
			},
		}
	}
	return list
}

// encode returns the encoded response with a list.
func encode(t testing.TB, l *encodedList[containerKey], list []container.Status, all bool) []byte {
	t.Helper()
	r := &runtimeapi.ListContainersResponse{}
	err := l.put(r, len(list), all, func(i int) (string, containerKey, func() proto.Message) {
		st := &list[i]
		return st.ID, containerKey{st.Config, containerState(*st), st.ImageID}, func() proto.Message { return listed(st) }
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestEncodedList(t *testing.T) {
	l, list := &encodedList[containerKey]{}, running(3)
	check := func(list []container.Status, all bool) {
		t.Helper()
		got, want := &runtimeapi.ListContainersResponse{}, &runtimeapi.ListContainersResponse{}
		if err := proto.Unmarshal(encode(t, l, list, all), got); err != nil {
			t.Fatal(err)
		}
		for i := range list {
			want.Containers = append(want.Containers, listed(&list[i]))
		}
		if !proto.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check(list, true)
	check(list, true)
	list[1].State = containerstate.Exited
	check(list[1:2], false)
	if len(l.byID) != 3 {
		t.Errorf("after a part of the list, %d elements are kept", len(l.byID))
	}
	encoded := &l.byID[list[1].ID].raw[0]
	check(list[:2], false)
	if &l.byID[list[1].ID].raw[0] != encoded {
		t.Error("an element of a list with a filter is encoded again")
	}
	check(list, true)
	for range maxOthers/100 + 2 {
		check(running(100), false)
	}
	if len(l.byID) > maxOthers+200 {
		t.Errorf("%d elements are kept", len(l.byID))
	}
	check(list[2:], true)
	if len(l.byID) != 1 {
		t.Errorf("%d elements are kept, want 1", len(l.byID))
	}
	check(nil, true)
	if !unfiltered((*runtimeapi.ContainerFilter)(nil)) || !unfiltered(&runtimeapi.ContainerFilter{}) ||
		unfiltered(&runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{}}) {
		t.Error("unfiltered is wrong")
	}
}

// BenchmarkEncode encodes a list of 100 containers: for the first time, and again.
func BenchmarkEncode(b *testing.B) {
	list := running(100)
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encode(b, &encodedList[containerKey]{}, list, true)
		}
	})
	b.Run("again", func(b *testing.B) {
		l := &encodedList[containerKey]{}
		b.ReportAllocs()
		for b.Loop() {
			encode(b, l, list, true)
		}
	})
}
