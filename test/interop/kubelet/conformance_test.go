package kubelet

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// What to run: see test-conformance in the Makefile.
var (
	nodeKind = flag.String("node", "", "run Kubernetes' end-to-end tests with this node: huskd or kubelet, which uses huskd")
	outDir   = flag.String("out", "out/conformance", "directory for logs and reports")
	onlyIn   = flag.String("groups", "", "comma-separated names of groups to run; empty for all but quick")
	focus    = flag.String("focus", "", "regular expression of specs to run, which may be of any group")
	count    = flag.Int("nodes", 1, "number of nodes")
	backend  = flag.String("backend", "host-gw", "network-backend of several nodes, which share a link only with host-gw")
	procs    = flag.String("procs", "4", "number of specs to run at a time")
)

// TestConformance runs Kubernetes' own end-to-end tests against a cluster, by group. It fails if a
// spec fails that testdata/exceptions doesn't list.
func TestConformance(t *testing.T) {
	if *nodeKind == "" {
		t.Skip("it takes an hour: run make test-conformance")
	}
	out, err := filepath.Abs(filepath.Join(*outDir, *nodeKind))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	exceptions, err := readExceptions("testdata/exceptions", *nodeKind, *count)
	if err != nil {
		t.Fatal(err)
	}
	var results []result
	// The first cleanup function runs last, after those that log what failed.
	t.Cleanup(func() { t.Log("\n" + table(results)) })
	c := newWholeCluster(t, out, *count)
	c.joinAs(*nodeKind)
	for _, g := range selected() {
		r := c.runSpecs(g, exceptions)
		results = append(results, r)
		t.Log(r)
		for _, spec := range r.failed {
			t.Errorf("%s: %s (alone: %s; see %s)", spec.name, firstLine(spec.message), firstLine(spec.alone), filepath.Join(out, r.group+".log"))
		}
	}
	c.leave()
	if *nodeKind == "huskd" {
		huskNode{c}.end()
	} else {
		c.end()
	}
}

// selected returns the groups that the flags select.
func selected() (list []group) {
	if *focus != "" && *onlyIn == "" {
		return []group{{name: "focus"}}
	}
	for _, g := range groups {
		if *onlyIn == "" || strings.Contains(","+*onlyIn+",", ","+g.name+",") {
			list = append(list, group{g.name, disjoint(g)})
		}
	}
	if *onlyIn == quick.name {
		return []group{quick}
	}
	return list
}

// runSpecs runs a group with Ginkgo. What failed runs once more, by itself, which tells whoever looks
// for the cause whether other specs or a busy machine have a part in it. The spec has failed all the
// same.
func (c *cluster) runSpecs(g group, exceptions map[string]string) result {
	c.t.Helper()
	began := time.Now()
	skip := make([]string, 0, len(exceptions))
	for name := range exceptions {
		skip = append(skip, name)
	}
	r := c.ginkgo(g.name, *procs, g.filter, *focus, skip)
	r.took = time.Since(began)
	if names := r.toDiagnose(); len(names) > 0 {
		r.diagnose(c.ginkgo(g.name+"-alone", "1", "", exactly(names), nil))
	}
	return r
}

// ginkgo runs specs in the node's namespaces and returns what became of them.
func (c *cluster) ginkgo(name, procs, filter, focus string, skip []string) result {
	c.t.Helper()
	report := filepath.Join(c.logs, name+".json")
	_ = os.Remove(report)
	args := []string{"--procs", procs, "--timeout", "6h", "--no-color", "--silence-skips", "--keep-going",
		"--output-dir", c.logs, "--json-report", name + ".json"}
	for flag, value := range map[string]string{"--label-filter": filter, "--focus": focus, "--skip": exactly(skip)} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	args = append(args, c.program("e2e.test"), "--", "--kubeconfig", c.Dir+"/admin.conf", "--provider", "skeleton", "--num-nodes", strconv.Itoa(len(c.nodes())),
		"--kubectl-path", c.program("kubectl"), "--report-dir", filepath.Join(c.logs, name))
	<-c.startLogged(name, "ginkgo", args...).done
	selects, err := types.ParseLabelFilter(filter)
	c.must(err)
	pattern, err := regexp.Compile(focus)
	c.must(err)
	r, err := readReport(report, func(spec types.SpecReport) bool {
		return slices.ContainsFunc(skip, func(name string) bool { return strings.Contains(spec.FullText(), name) }) &&
			selects(spec.Labels()) && pattern.MatchString(spec.FullText())
	})
	if err != nil {
		c.t.Fatalf("Ginkgo ended without a report, see %s: %v", filepath.Join(c.logs, name+".log"), err)
	}
	r.group = name
	return r
}
