package view

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// TestAddresses: a pod has one address of each family, whatever a CNI plugin says.
func TestAddresses(t *testing.T) {
	t.Parallel()
	attached := pod.Attached{Addresses: []netip.Prefix{
		netip.MustParsePrefix("fd00::1/64"), netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00::2/64"),
	}}
	st := sandbox.Status{State: sandboxstate.Ready}
	st.Attachment.Netns = "/run/netns/web"
	st.Attached = []pod.Attached{attached}
	if got := Addresses(st, nil); !slices.Equal(got, []string{"fd00::1", "10.0.0.1"}) {
		t.Errorf("%v", got)
	}
}
