package huskdtest

import (
	"testing"

	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
)

// closed is a port without a listener.
const closed = 81

func (f Fixture) forward(t *testing.T) {
	found, err := f.Client.FindPorts(t.Context(), &huskv1.FindPortsRequest{Name: f.Pod, Ports: []string{"81", "65535"}})
	if err != nil || found.Namespace != "default" || found.Name != f.Pod || found.Uid != f.pod(t.Context(), t, true).Uid ||
		len(found.Ports) != 2 || found.Ports[0] != closed || found.Ports[1] != 65535 {
		t.Errorf("%v, %v", found, err)
	}
	for _, port := range []string{"none", "0", "65536", "-1", ""} {
		_, err := f.Client.FindPorts(t.Context(), &huskv1.FindPortsRequest{Name: f.Pod, Ports: []string{port}})
		wantCode(t, err, codes.NotFound)
	}
	_, err = f.Client.FindPorts(t.Context(), &huskv1.FindPortsRequest{Name: "no-such-pod"})
	wantCode(t, err, codes.NotFound)
	connect := func(start *huskv1.ForwardStart) error {
		stream, err := f.Client.Forward(t.Context())
		if err != nil {
			return err
		}
		_ = stream.Send(&huskv1.ForwardInput{Of: &huskv1.ForwardInput_Start{Start: start}}) // Recv returns the error
		_, err = stream.Recv()
		return err
	}
	wantCode(t, connect(&huskv1.ForwardStart{Uid: found.Uid, Port: closed}), codes.Unknown)
	wantCode(t, connect(&huskv1.ForwardStart{Uid: found.Uid}), codes.InvalidArgument)
	wantCode(t, connect(&huskv1.ForwardStart{Uid: "none", Port: closed}), codes.NotFound)
}

func (f Fixture) usage(t *testing.T) {
	_, err := f.Client.Usage(t.Context(), &huskv1.UsageRequest{Name: "no-such-pod"})
	wantCode(t, err, codes.NotFound)
	for _, name := range []string{"", f.Pod} {
		answer, err := f.Client.Usage(t.Context(), &huskv1.UsageRequest{Name: name})
		if err != nil || len(answer.Pods) == 0 {
			t.Fatalf("%v, %v", answer, err)
		}
		for _, p := range answer.Pods {
			if p.Name != f.Pod {
				continue
			}
			if p.Uid == "" || p.Total.GetAtNs() == 0 || len(p.Containers) != 1 {
				t.Fatalf("usage: %v", p)
			}
			if u := p.Containers[0].Used; u.GetCpuNs() == 0 || u.GetMemoryBytes() == 0 || u.GetProcesses() == 0 {
				t.Errorf("usage of its container: %v", u)
			}
		}
	}
}
