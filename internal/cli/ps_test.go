package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/flags"
)

// TestWatchPods checks that husk ps -w prints the pods, and then only what changes.
func TestWatchPods(t *testing.T) {
	t.Parallel()
	pod := func(name, phase string) *huskv1.Pod {
		return &huskv1.Pod{Namespace: "default", Name: name, Uid: name, Phase: phase}
	}
	states := [][]*huskv1.Pod{
		{pod("db", "Pending"), pod("web", "Running")},
		{pod("db", "Pending"), pod("web", "Running")},
		{pod("db", "Running"), pod("web", "Running")},
		{pod("db", "Running")},
	}
	for o, want := range map[flags.Output]string{
		flags.Table: "NAME READY STATUS RESTARTS AGE IP\ndb 0/0 Pending 0 <unknown> <none>\nweb 0/0 Running 0 <unknown> <none>\ndb 0/0 Running 0 <unknown> <none>\nweb 0/0 Removed 0 <unknown> <none>\n",
		flags.JSON:  "db Pending\nweb Running\ndb Running\nweb Removed\n",
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := errors.New("ended")
		n := 0
		list := func() ([]*huskv1.Pod, error) {
			if n++; n == len(states) {
				cancel(ended)
			}
			return states[n-1], nil
		}
		if err := (&app{out: out}).watchPods(ctx, list, o); !errors.Is(err, ended) {
			t.Errorf("%v", err)
		}
		_ = out.Close()
		raw, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for line := range strings.Lines(string(raw)) {
			if o == flags.JSON {
				_, name, _ := strings.Cut(line, `"name":"`)
				name, rest, _ := strings.Cut(name, `"`)
				_, phase, _ := strings.Cut(rest, `"phase":"`)
				phase, _, _ = strings.Cut(phase, `"`)
				line = name + " " + phase
			}
			got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		if got.String() != want {
			t.Errorf("%q prints\n%s\nwant\n%s", o, got.String(), want)
		}
	}
}
