package render

import (
	"strings"
	"testing"

	huskv1 "github.com/huskd/husk/api/v1"
)

func TestEventOfTheNode(t *testing.T) {
	got := EventLine(&huskv1.Event{Warning: true, Reason: "NodePathLost", Message: "node b has stopped answering, by vxlan"})
	if want := " Warning NodePathLost node: node b has stopped answering, by vxlan"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want …%q", got, want)
	}
}

func TestEventOfAnObject(t *testing.T) {
	got := EventLine(&huskv1.Event{Warning: true, Reason: "NoPods", Namespace: "shop", Name: "service/web", Message: "no pod has the label"})
	if want := " Warning NoPods service/shop/web: no pod has the label"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want …%q", got, want)
	}
}
