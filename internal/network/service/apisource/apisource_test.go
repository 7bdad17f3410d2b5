package apisource

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
)

// TestLabels: neither Services of another proxy nor EndpointSlices for DNS only are followed, also
// once they get the label.
func TestLabels(t *testing.T) {
	server := clustertest.New(t)
	named := func(name, label string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "x", Name: name, Labels: map[string]string{label: ""}}
	}
	putService := func(name, label string) {
		server.Put("/api/v1/services", &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: named(name, label)})
	}
	putSlice := func(name, label string) {
		server.Put("/apis/discovery.k8s.io/v1/endpointslices", &discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: named(name, label), AddressType: discoveryv1.AddressTypeIPv4,
		})
	}
	const otherProxy = "service.kubernetes.io/service-proxy-name"
	putService("a", "any")
	putService("b", otherProxy)
	putSlice("a", "any")
	putSlice("b", corev1.IsHeadlessService)
	putSlice("c", otherProxy)
	client, err := cluster.New(server.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.CloseConnections()
		client.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	changes, ended := make(chan service.Changes), make(chan error, 1)
	source := &Source{Connect: func(context.Context) (*cluster.Client, error) { return client, nil }, Node: "n", Mistaken: func(accept.Problem) {}}
	go func() {
		ended <- source.Run(ctx, func(c service.Changes) {
			select {
			case changes <- c:
			case <-ctx.Done():
			}
		}, func(error) {})
	}()
	followed := map[string]bool{}
	await := func(want string) {
		t.Helper()
		for {
			got := strings.Join(slices.Sorted(maps.Keys(followed)), " ")
			if got == want {
				return
			}
			select {
			case c := <-changes:
				note(followed, "service ", c.Services)
				note(followed, "slice ", c.Slices)
			case <-ctx.Done():
				t.Fatalf("%q is followed, want %q", got, want)
			}
		}
	}
	await("service x/a slice x/a slice x/c")
	putSlice("a", corev1.IsHeadlessService)
	await("service x/a slice x/c")
	putSlice("a", "any")
	putService("a", otherProxy)
	await("slice x/a slice x/c")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// note notes in which objects there are after a change.
func note[V any](in map[string]bool, kind string, changed map[string]*V) {
	for key, value := range changed {
		if in[kind+key] = true; value == nil {
			delete(in, kind+key)
		}
	}
}
