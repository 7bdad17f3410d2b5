package host

import (
	"regexp"
	"testing"
)

func TestBootID(t *testing.T) {
	id, err := BootID()
	if err != nil || !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) {
		t.Errorf("the boot ID is %q: %v", id, err)
	}
	if facts := Probe(t.TempDir()); facts.BootID != id {
		t.Errorf("the facts' boot ID is %q, not %q", facts.BootID, id)
	}
}
