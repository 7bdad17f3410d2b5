package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/stats/cadvisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExpand(t *testing.T) {
	ids := []string{"abc", "abd", "b"}
	for prefix, want := range map[string]string{"abc": "abc", "abd": "abd", "b": "b"} {
		if got, err := expand("sandbox", prefix, slices.Values(ids)); got != want || err != nil {
			t.Errorf("%s: got %q, %v", prefix, got, err)
		}
	}
	if _, err := expand("sandbox", "ab", slices.Values(ids)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("ambiguous: %v", err)
	}
	if _, err := expand("sandbox", "", slices.Values(ids)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("empty: %v", err)
	}
	if _, err := expand("sandbox", strings.Repeat("\n", 1000), slices.Values(ids)); !errdefs.IsNotFound(err) || len(err.Error()) > 300 {
		t.Errorf("unprintable: %v", err)
	}
}

func TestSelected(t *testing.T) {
	mine := map[string]string{"a": "1", "b": ""}
	agents := map[string]string{"a": "1", agent.Label: "true"}
	for _, c := range []struct {
		labels, selector map[string]string
		named, want      bool
	}{
		{mine, nil, false, true},
		{mine, map[string]string{"a": "1"}, false, true},
		{mine, map[string]string{"b": ""}, false, true},
		{mine, map[string]string{"c": ""}, false, false},
		{mine, map[string]string{"a": "2"}, true, false},
		{agents, nil, false, false},
		{agents, map[string]string{"a": "1"}, false, false},
		{agents, nil, true, true},
		{agents, map[string]string{agent.Label: "true"}, false, true},
	} {
		if got := selected(c.labels, c.selector, c.named); got != c.want {
			t.Errorf("labels %v, selector %v, named %v: got %v", c.labels, c.selector, c.named, got)
		}
	}
}

func TestLogin(t *testing.T) {
	for address, want := range map[string]bool{
		"": true, "r.test": true, "https://r.test": true, "https://r.test/v2/": true, "r.test/x": true,
		"other.test": false, "https://r.test.evil": false, "r.test:443": false, "docker.io": false,
	} {
		if got := validFor(address, "r.test/a/b:1"); got != want {
			t.Errorf("credentials for %q: got %v", address, got)
		}
	}
	if !validFor("https://index.docker.io/v1/", "docker.io/library/a:1") {
		t.Error("credentials for docker hub's own address aren't valid for docker.io")
	}
	o, err := login("r.test/a", &runtimeapi.AuthConfig{IdentityToken: "t"})
	if err != nil || o.Username != "" || o.Password != "t" {
		t.Errorf("identity token: %+v, %v", o, err)
	}
	if o, err = login("r.test/a", &runtimeapi.AuthConfig{RegistryToken: "t"}); err != nil || o.Token != "t" || o.Password != "" {
		t.Errorf("registry token: %+v, %v", o, err)
	}
	if _, err = login("r.test/a", &runtimeapi.AuthConfig{RegistryToken: "t\r\nHost: x"}); err == nil {
		t.Error("a token of two lines is accepted")
	}
}

func TestSemantic(t *testing.T) {
	for version, want := range map[string]string{
		"v0.3.0": "v0.3.0", "1.2.3-4-g0a37989-dirty": "1.2.3-4-g0a37989-dirty", "9b9b7f9-dirty": "0.0.0+9b9b7f9-dirty", "unknown": "0.0.0+unknown",
	} {
		if got := semantic(version); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	long := strings.Repeat("é", 3000)
	err := error(line{errdefs.ErrNotFound.WithMessage("no\n such \r\n image " + long + " here")})
	if !errdefs.IsNotFound(err) {
		t.Errorf("the kind of the error is lost: %v", err)
	}
	if text := err.Error(); !strings.HasPrefix(text, "no such image é") || !strings.HasSuffix(text, "…(6000 characters) here") || len(text) > 200 {
		t.Errorf("%q", text)
	}
	err = line{fmt.Errorf("exec: %w", &oci.StartError{Code: 127, Message: "none"})}
	if refusal := (*oci.StartError)(nil); !errors.As(err, &refusal) {
		t.Error("the wrapped error is lost")
	}
}

func TestInChunks(t *testing.T) {
	for n, want := range map[int][]int{0: nil, 1: {1}, chunkSize: {chunkSize}, 2*chunkSize + 1: {chunkSize, chunkSize, 1}} {
		var got []int
		_ = inChunks(make([]int, n), func(part []int) error {
			got = append(got, len(part))
			return nil
		})
		if !slices.Equal(got, want) {
			t.Errorf("%d elements: got chunks of %v", n, got)
		}
	}
	stop := errors.New("stop")
	if err := inChunks(make([]int, 9999), func([]int) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func TestCapture(t *testing.T) {
	budget := &budget{left: 5}
	a, b := &capture{budget: budget}, &capture{budget: budget}
	for _, c := range []*capture{a, b, a} {
		if n, err := c.Write([]byte("123")); n != 3 || err != nil {
			t.Errorf("the writer gets %d, %v", n, err)
		}
	}
	if string(a.bytes)+string(b.bytes) != "12312" {
		t.Errorf("captured %q and %q", a.bytes, b.bytes)
	}
}

// imageOf returns the message of an image with this USER.
func imageOf(user string) *runtimeapi.Image {
	return imageMessage(image.Image{Config: ocispec.ImageConfig{User: user}})
}

func TestImageUser(t *testing.T) {
	for user, want := range map[string]string{
		"": "uid:{} ", "0": "uid:{} ", "1002": "uid:{value:1002} ", "1003:1003": "uid:{value:1003} ", "www-data": `username:"www-data" `, "www-data:www-data": `username:"www-data" `,
	} {
		img := imageOf(user)
		got := ""
		if img.GetUid() != nil {
			got = strings.ReplaceAll("uid:{"+img.GetUid().String()+"} ", "  ", " ")
		}
		if img.GetUsername() != "" {
			got += fmt.Sprintf("username:%q ", img.GetUsername())
		}
		if got != want {
			t.Errorf("USER %q: got %s, want %s", user, got, want)
		}
	}
}

// TestMetricsHaveDescriptors: each metric has a descriptor with as many labels.
func TestMetricsHaveDescriptors(t *testing.T) {
	keys := map[string]int{}
	for _, d := range descriptors() {
		if _, twice := keys[d.GetName()]; twice || d.GetHelp() == "" {
			t.Errorf("descriptor %v is there twice or has no help text", d)
		}
		keys[d.GetName()] = len(d.GetLabelKeys())
	}
	s := cadvisor.Subject{Usage: stats.Usage{
		HugePages: []stats.HugePages{{Size: "2MB"}}, Disks: []stats.DiskIO{{Major: 8}},
	}}
	s.Pressure.CPU, s.Pressure.Memory, s.Pressure.IO = &stats.Pressure{}, &stats.Pressure{}, &stats.Pressure{}
	seen := map[string]bool{}
	for _, m := range append(readMetrics(&s, cadvisor.Cgroups, cadvisor.Containers), readTraffic(&s, []stats.Interface{{Name: "eth0"}})...) {
		seen[m.GetName()] = true
		if keys[m.GetName()] != len(m.GetLabelValues()) {
			t.Errorf("%s has %d labels, its descriptor %d", m.GetName(), len(m.GetLabelValues()), keys[m.GetName()])
		}
	}
	if len(seen) != len(keys) {
		t.Errorf("%d metrics and %d descriptors", len(seen), len(keys))
	}
}

func sandboxIn(state sandboxstate.State, labels map[string]string) sandbox.Status {
	return sandbox.Status{ID: pod.NewID(), State: state, Config: &runtimeapi.PodSandboxConfig{Labels: labels}}
}

// TestEvents: a subscriber gets the events since its subscription, in order, and an error if it is
// too slow.
func TestEvents(t *testing.T) {
	e := &Events{}
	e.Sandbox(sandboxIn(sandboxstate.Ready, nil)) // before the subscription
	s, unsubscribe := e.subscribe()
	e.Sandbox(sandboxIn(sandboxstate.Attaching, nil))
	e.Sandbox(sandboxIn(sandboxstate.Ready, map[string]string{agent.Label: "true"}))
	st := sandboxIn(sandboxstate.Ready, nil)
	e.Sandbox(st)
	k := container.Status{ID: pod.NewID(), Sandbox: st.ID, Config: &runtimeapi.ContainerConfig{}, State: containerstate.Releasing}
	e.Container(k) // it was never created
	k.Process.PID = 1
	e.Container(k)
	var got []string
	enough := errors.New("enough")
	err := s.each(context.Background(), func(next event) error {
		got = append(got, next.kind.String()+" "+next.id)
		if len(got) == 3 {
			return enough
		}
		return nil
	})
	want := []string{"CONTAINER_CREATED_EVENT " + st.ID, "CONTAINER_STARTED_EVENT " + st.ID, "CONTAINER_STOPPED_EVENT " + k.ID}
	if !errors.Is(err, enough) || !slices.Equal(got, want) {
		t.Errorf("%v: %v, want %v", err, got, want)
	}
	for range backlog + 1 {
		e.Container(k)
	}
	err = s.each(context.Background(), func(event) error { return nil })
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("a subscriber that lost an event gets %v", err)
	}
	unsubscribe()
	if len(e.subscribers) > 0 {
		t.Error("the subscriber is still there")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	s, unsubscribe = e.subscribe()
	defer unsubscribe()
	if err := s.each(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
