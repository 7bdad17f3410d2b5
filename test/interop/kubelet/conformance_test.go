package kubelet

import (
	"flag"
	"maps"
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
	outDir   = flag.String("out", "out/conformance", "directory for logs, reports and records")
	onlyIn   = flag.String("groups", "", "comma-separated names of groups to run; empty for all but quick")
	focus    = flag.String("focus", "", "regular expression of specs to run, which may be of any group")
	count    = flag.Int("nodes", 1, "number of nodes")
	backend  = flag.String("backend", "host-gw", "network-backend of several nodes, which share a link only with host-gw")
	procs    = flag.String("procs", "4", "number of specs that a cluster runs at a time")
	clusters = flag.Int("clusters", 1, "number of clusters, each of which runs a group at a time")
	commit   = flag.String("commit", "", "commit that is tested; groups that have ended at it don't run again")
	until    = flag.Int64("until", 0, "Unix time at which to stop; another run goes on with what is left. 0 is never")
)

// TestConformance runs Kubernetes' own end-to-end tests against clusters, by group. It fails if a
// spec fails that testdata/exceptions doesn't list, and if a group that was selected hasn't ended.
func TestConformance(t *testing.T) {
	if *nodeKind == "" {
		t.Skip("it takes hours: run make test-conformance")
	}
	out, err := filepath.Abs(filepath.Join(*outDir, *nodeKind))
	if err != nil {
		t.Fatal(err)
	}
	exceptions, err := readExceptions("testdata/exceptions", *nodeKind, *count)
	if err != nil {
		t.Fatal(err)
	}
	kept := recordsIn(out)
	chosen := selected()
	queue := kept.pending(chosen)
	keepSysctls(t) // before the first of several clusters changes them
	t.Run("clusters", func(t *testing.T) {
		for i := range min(*clusters, len(queue)) {
			t.Run(strconv.Itoa(i+1), func(t *testing.T) {
				t.Parallel()
				kept.run(t, queue, filepath.Join(out, "cluster-"+strconv.Itoa(i+1)), exceptions)
			})
		}
	})
	for _, g := range chosen {
		r := kept.read(g.name)
		if r.Unfinished != "" {
			t.Errorf("%s: %s", g.name, r.Unfinished)
		}
		for _, spec := range r.Failed {
			t.Errorf("%s: %s: %s (alone: %s; see %s)", g.name, spec.Name, firstLine(spec.Message), firstLine(spec.Alone), r.Log)
		}
	}
	t.Log("\n" + kept.table())
}

// selected returns the groups that the flags select.
func selected() (list []group) {
	if *onlyIn == quick.name {
		return []group{quick}
	}
	if *focus != "" && *onlyIn == "" {
		return []group{{name: "focus"}}
	}
	for _, g := range groups {
		if *onlyIn == "" || strings.Contains(","+*onlyIn+",", ","+g.name+",") {
			g.filter = disjoint(g)
			if *focus != "" {
				g.name += "-focus"
			}
			list = append(list, g)
		}
	}
	return list
}

// timeLeft returns how long the run may still take.
func timeLeft() time.Duration {
	if *until == 0 {
		return 6 * time.Hour
	}
	return time.Until(time.Unix(*until, 0))
}

// run runs groups of the queue in a cluster of their own. A group that takes longer than the time
// that is left stays for another run.
func (r records) run(t *testing.T, queue <-chan group, logs string, exceptions map[string]string) {
	var c *cluster
	for g := range queue {
		if timeLeft() < time.Duration(g.minutes)*time.Minute {
			t.Logf("%s isn't begun: it takes %d minutes", g.name, g.minutes)
			continue
		}
		if c == nil {
			if err := os.MkdirAll(logs, 0o755); err != nil {
				t.Fatal(err)
			}
			c = newWholeCluster(t, logs, *count)
			c.joinAs(*nodeKind)
		}
		began := result{Group: g.name, Began: time.Now(), Log: filepath.Join(logs, g.name+".log"), Unfinished: killed}
		c.must(r.begin(&began))
		ended := c.runSpecs(g, exceptions)
		ended.Began, ended.Log = began.Began, began.Log
		ended.alsoFailed(began.Failed)
		c.must(r.write(ended))
		t.Log(ended)
	}
	if c == nil {
		return
	}
	c.leave()
	if *nodeKind == "huskd" {
		huskNode{c}.end()
	} else {
		c.end()
	}
}

// runSpecs runs a group with Ginkgo. What failed runs once more, by itself, which tells whoever looks
// for the cause whether other specs or a busy machine have a part in it. The spec has failed all the
// same.
func (c *cluster) runSpecs(g group, exceptions map[string]string) result {
	c.t.Helper()
	began := time.Now()
	r := c.ginkgo(g.name, *procs, g.filter, *focus, slices.Collect(maps.Keys(exceptions)))
	r.Took = time.Since(began)
	if names := r.toDiagnose(); len(names) > 0 && r.Unfinished == "" {
		r.diagnose(c.ginkgo(g.name+"-alone", "1", "", exactly(names), nil))
	}
	return r
}

// ginkgo runs specs in the node's namespaces and returns what became of them.
func (c *cluster) ginkgo(name, procs, filter, focus string, skip []string) result {
	c.t.Helper()
	report := filepath.Join(c.logs, name+".json")
	_ = os.Remove(report)
	args := []string{"--procs", procs, "--timeout", timeLeft().String(), "--no-color", "--silence-skips", "--keep-going",
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
	r.Group = name
	return r
}
