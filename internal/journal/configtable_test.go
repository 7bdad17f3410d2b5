package journal

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestConfigTableLoadsPairs: Load yields each record with its config. A record without a config is
// set aside, and a config without a record is removed.
func TestConfigTableLoadsPairs(t *testing.T) {
	j := open(t, t.TempDir())
	table := NewConfigTable[int, *wrapperspb.StringValue](j, "thing")
	for i, id := range []string{"a", "b", "c", "d", "e"} {
		must(t, table.Create(id, wrapperspb.String("of "+id), i))
	}
	must(t, table.Put("a", 10))
	must(t, table.Delete("b"))
	must(t, j.Delete("thing-config/c"))
	must(t, j.Put("thing-config/d", []byte{0xff}))
	must(t, j.Put("thing-config/stray", nil))

	got := map[string]int{}
	bad := table.Load(func(id string, config *wrapperspb.StringValue, v int) error {
		if id == "e" {
			return errors.New("not wanted")
		}
		if config.Value != "of "+id {
			t.Errorf("%s is loaded with config %q", id, config.Value)
		}
		got[id] = v
		return nil
	})
	if len(got) != 1 || got["a"] != 10 || len(bad) != 3 {
		t.Errorf("Load yielded %v and set aside: %v", got, bad)
	}
	for key := range contents(j) {
		switch key {
		case "thing/a", "thing-config/a", "aside/thing/c", "aside/thing/d", "aside/thing/e":
		default:
			t.Errorf("key %s is left", key)
		}
	}
}
