package simulation

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/sandbox"
)

var record = flag.String("record", "", "write a journal with all kinds of records to this file, for the first release of a format")

// released is a journal that the first release of its format wrote, for the steps in recorded. Such
// files are never changed.
const released = "testdata/journal-1"

// recorded are the steps before the journal was copied.
var recorded = []step{
	{Do: "run", Pod: "web"}, {Do: "create", Pod: "web", Container: "a"}, {Do: "start", Pod: "web", Container: "a"},
	{Do: "create", Pod: "web", Container: "b"}, {Do: "end", Pod: "web", Container: "b"},
	{Do: "run", Pod: "shared"}, {Do: "stop", Pod: "shared"}, {Do: "run", Pod: "late"}, {Do: "run", Pod: "host"},
}

func recordTo(t *testing.T, path string) {
	synctest.Test(t, func(t *testing.T) {
		r := newRun(schedule{}, t.TempDir())
		r.startHuskd()
		for _, st := range recorded {
			st.For = span{time.Hour}
			r.step(st)
			r.calls.Wait()
		}
		if err := os.WriteFile(path, r.disk.Content("journal"), 0o644); err != nil {
			t.Fatal(err)
		}
		r.finish()
	})
}

// TestUpgrade reads the journal of a former release. Every record must have its meaning.
func TestUpgrade(t *testing.T) {
	if *record != "" {
		recordTo(t, *record)
	}
	content, err := os.ReadFile(released)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "journal"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	j, damage, err := journal.Open(dir)
	if err != nil || len(damage) > 0 {
		t.Fatalf("%v, damage %v", err, damage)
	}
	defer j.Close()
	facts, log := host.Facts{BootID: "boot-1"}, slog.New(slog.DiscardHandler)
	sandboxes := sandbox.New(sandbox.Config{Instance: instance, State: t.TempDir(), Journal: j, Host: facts, Log: log})
	containers := container.New(container.Config{Root: t.TempDir(), State: t.TempDir(), Journal: j, Host: facts, Log: log})
	if bad := append(sandboxes.Load(), containers.Load()...); len(bad) > 0 {
		t.Fatalf("records were refused: %v", bad)
	}
	got := map[string]string{}
	for _, st := range sandboxes.List() {
		got[st.Ref().Name] = string(st.State)
		for _, c := range containers.List(st.ID) {
			got[st.Ref().Name+"/"+c.Name()] = fmt.Sprintf("%s %d", c.State, c.Exit.Code)
		}
		if addressed := len(st.Addresses()) > 0; addressed == st.HostNetwork() || (st.Infra != nil) != (st.Ref().Name == "shared" || st.Ref().Name == "late") {
			t.Errorf("a part of %s is lost: %+v", st.Ref(), st)
		}
	}
	want := map[string]string{"web": "ready", "web/a": "running 0", "web/b": "exited 137", "shared": "stopped", "late": "ready", "host": "ready"}
	if !maps.Equal(got, want) {
		t.Errorf("got\n%v, want\n%v", got, want)
	}
}
