package kubelet

import (
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// A group is a part of the end-to-end tests.
type group struct {
	name    string
	filter  string // selects specs by labels
	minutes int    // that it takes on two cores, beside another cluster
}

const (
	conformance = "(Conformance || NodeConformance)"
	// Disruptive specs end the control plane or the machine, flaky ones fail in Kubernetes' own runs,
	// and alpha features are off. Husk has no dynamic resource allocation (DRA).
	steady = "!Disruptive && !Flaky && !Alpha && !DRA"
	// plain specs need no feature that a cluster may lack.
	plain = steady + " && Feature: isEmpty"
	// nodeFeatures are the features of sig-node's specs that need neither equipment, such as graphics
	// processors, nor configuration beyond the defaults: NodeLogQuery is off by default in a kubelet,
	// PodGarbageCollector needs another threshold of kube-controller-manager.
	nodeFeatures = steady + " && Feature: isSubsetOf {EnvFiles, HostAccess, InPlacePodVerticalScaling, PodLevelResources, " +
		"PodLogsQuerySplitStreams, RuntimeHandler, SupplementalGroupsPolicy, UserNamespacesSupport}"
)

// A spec belongs to the first group that selects it. The specs of sig-storage outside of conformance
// are about persistent volumes, and those of sig-autoscaling need metrics of a cloud.
var groups = []group{
	{"node", "sig-node && " + conformance, 30},
	{"storage", "sig-storage && " + conformance, 20},
	{"network", "sig-network && " + conformance, 10},
	{"policy", "Feature:NetworkPolicy", 10},
	{"apps", "sig-apps && " + conformance, 20},
	{"others", "!(sig-node || sig-storage || sig-network || sig-apps) && " + conformance, 20},
	{"slow", "Slow && !(sig-storage || sig-autoscaling) && " + plain, 30},
	{"api-machinery", "sig-api-machinery && " + plain, 6},
	{"auth", "sig-auth && " + plain, 3},
	{"cli", "sig-cli && " + plain, 25},
	{"instrumentation", "sig-instrumentation && " + plain, 4},
	{"scheduling", "sig-scheduling && " + plain, 20},
	{"node-features", "sig-node && " + nodeFeatures, 45},
}

// quick is a part of the others.
var quick = group{"quick", "(sig-node || sig-network) && Conformance && !Serial && !Slow", 15}

// disjoint returns the filter of what a group selects and no group before it.
func disjoint(g group) string {
	filters := []string{"(" + g.filter + ")"}
	for _, before := range groups[:slices.Index(groups, g)] {
		filters = append(filters, "!("+before.filter+")")
	}
	return strings.Join(filters, " && ")
}

func TestGroups(t *testing.T) {
	for labels, want := range map[string]string{
		"sig-node Conformance NodeConformance":              "node",
		"sig-node NodeConformance Slow":                     "node",
		"sig-apps Conformance Slow":                         "apps",
		"sig-cli Conformance":                               "others",
		"sig-cli":                                           "cli",
		"sig-cli Slow":                                      "slow",
		"sig-cli Flaky":                                     "",
		"sig-network Feature:NetworkPolicy":                 "policy",
		"sig-network Slow Serial":                           "slow",
		"sig-network Slow Feature:LoadBalancer":             "",
		"sig-storage Slow":                                  "",
		"sig-api-machinery Serial":                          "api-machinery",
		"sig-api-machinery Disruptive":                      "",
		"sig-api-machinery Feature:CBOR":                    "",
		"sig-auth FeatureGate:X Beta":                       "auth",
		"sig-auth FeatureGate:X Alpha Feature:OffByDefault": "",
		"sig-instrumentation":                               "instrumentation",
		"sig-scheduling Serial":                             "scheduling",
		"sig-node":                                          "node-features",
		"sig-node Feature:UserNamespacesSupport":            "node-features",
		"sig-node Feature:UserNamespacesSupport Feature:OffByDefault": "",
		"sig-node Beta Feature:EnvFiles FeatureGate:EnvFiles":         "node-features",
		"sig-node Beta DRA":                "",
		"sig-node Feature:GPUDevicePlugin": "",
		"sig-node Feature:NodeLogQuery":    "",
	} {
		var got []string
		for _, g := range groups {
			selects, err := types.ParseLabelFilter(disjoint(g))
			if err != nil {
				t.Fatalf("%s: %v", g.name, err)
			}
			if selects(strings.Fields(labels)) {
				got = append(got, g.name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("specs with the labels %s run in the groups %q, want %q", labels, got, want)
		}
	}
}
