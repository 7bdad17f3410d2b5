package kubelet

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// result is what became of the specs of a group.
type result struct {
	group    string
	passed   int
	again    int // of those that failed, how many passed when they ran again, by themselves
	failed   []failure
	skipped  int // by themselves: they need what the cluster doesn't have
	excepted int
	took     time.Duration
}

type failure struct{ name, message string }

// readReport reads a report of Ginkgo's. Excepted reports whether a spec that wasn't selected would
// have been, if it weren't an exception.
func readReport(path string, excepted func(types.SpecReport) bool) (r result, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	var suites []types.Report
	if err := json.Unmarshal(text, &suites); err != nil {
		return r, err
	}
	for _, suite := range suites {
		for _, reason := range suite.SpecialSuiteFailureReasons {
			if !suite.SuiteSucceeded && strings.Contains(reason, "panic") {
				err = errors.Join(err, errors.New(reason))
			}
		}
		for _, spec := range suite.SpecReports {
			if spec.State == types.SpecStateSkipped && spec.Failure.Message == "" && excepted(spec) {
				r.excepted++
			} else {
				r.add(spec)
			}
		}
	}
	return r, err
}

func (r *result) add(spec types.SpecReport) {
	switch {
	case spec.State.Is(types.SpecStateFailureStates):
		name := spec.FullText()
		if name == "" {
			name = spec.LeafNodeType.String()
		}
		r.failed = append(r.failed, failure{name, strings.TrimSpace(spec.Failure.Message)})
	case spec.LeafNodeType != types.NodeTypeIt:
	case spec.State == types.SpecStatePassed:
		r.passed++
	case spec.State == types.SpecStateSkipped && spec.Failure.Message != "":
		r.skipped++
	}
}

// table renders results for people.
func table(results []result) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "group\tpassed\tonly alone\tfailed\tnot applicable\texcepted\ttime")
	var sum result
	row := func(r result, failed int) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%v\n", r.group, r.passed+r.again, r.again, failed, r.skipped, r.excepted, r.took.Round(time.Second))
	}
	failed := 0
	for _, r := range results {
		row(r, len(r.failed))
		failed += len(r.failed)
		sum = result{"all", sum.passed + r.passed, sum.again + r.again, nil, sum.skipped + r.skipped, sum.excepted + r.excepted, sum.took + r.took}
	}
	row(sum, failed)
	_ = w.Flush()
	return b.String()
}

// exactly returns a regular expression that matches any of these strings.
func exactly(names []string) string {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	slices.Sort(quoted)
	return strings.Join(quoted, "|")
}

// readExceptions reads the specs that can't pass, and why, with a number of nodes of one kind.
func readExceptions(path, kind string, count int) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	exceptions := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s: %q isn't NODE | SPEC | REASON", path, line)
		}
		if fields[0] == kind || fields[0] == "any" || fields[0] == "single" && count == 1 {
			exceptions[fields[1]] = fields[2]
		}
	}
	return exceptions, nil
}

func TestReadReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	spec := func(state types.SpecState, message string) types.SpecReport {
		return types.SpecReport{LeafNodeType: types.NodeTypeIt, LeafNodeText: "spec", State: state, Failure: types.Failure{Message: message}}
	}
	text, err := json.Marshal([]types.Report{{SpecReports: types.SpecReports{
		spec(types.SpecStatePassed, ""), spec(types.SpecStateFailed, "no"), spec(types.SpecStateTimedout, "late"),
		spec(types.SpecStateSkipped, "needs two nodes"), spec(types.SpecStateSkipped, ""),
		{LeafNodeType: types.NodeTypeIt, LeafNodeText: "excepted", State: types.SpecStateSkipped},
		{LeafNodeType: types.NodeTypeBeforeSuite, State: types.SpecStatePassed},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := readReport(path, func(s types.SpecReport) bool { return s.LeafNodeText == "excepted" })
	if err != nil || r.passed != 1 || r.skipped != 1 || r.excepted != 1 || !slices.Equal(r.failed, []failure{{"spec", "no"}, {"spec", "late"}}) {
		t.Errorf("%+v %v", r, err)
	}
}

func TestReadExceptions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exceptions")
	if err := os.WriteFile(path, []byte("# comment\n\nany | [a] b | c\nkubelet | d | e\nsingle | f | g\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := readExceptions(path, "huskd", 3); err != nil || len(got) != 1 || got["[a] b"] != "c" {
		t.Error(got, err)
	}
	if got, err := readExceptions(path, "huskd", 1); err != nil || len(got) != 2 || got["f"] != "g" {
		t.Error(got, err)
	}
	if got, err := readExceptions("testdata/exceptions", "huskd", 1); err != nil || len(got) == 0 {
		t.Error(got, err)
	}
}
