package kubelet

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// result is what became of the specs of a group.
type result struct {
	Group      string
	Passed     []string // names
	Failed     []failure
	Skipped    int // by themselves: they need what the cluster doesn't have
	Excepted   int
	Began      time.Time
	Took       time.Duration
	Log        string // path of Ginkgo's log
	Unfinished string // why not all specs ran; "" if they did
}

// failure is a spec that failed.
type failure struct {
	Name, Message string
	Alone         string // what became of it when it ran again, by itself; "" if it didn't
}

const passedAlone = "passed"

// maxDiagnosed bounds the specs that run again. If more fail, the cause isn't any single one's.
const maxDiagnosed = 20

// toDiagnose returns the names of the specs that should run again, by themselves.
func (r *result) toDiagnose() (names []string) {
	for _, f := range r.Failed[:min(len(r.Failed), maxDiagnosed)] {
		names = append(names, f.Name)
	}
	return names
}

// diagnose notes beside the failures what became of them in a run by themselves.
func (r *result) diagnose(alone result) {
	for i, f := range r.Failed {
		if slices.Contains(alone.Passed, f.Name) {
			r.Failed[i].Alone = passedAlone
		}
		for _, again := range alone.Failed {
			if again.Name == f.Name {
				r.Failed[i].Alone = again.Message
			}
		}
	}
}

// String renders a result in a line.
func (r result) String() string {
	return fmt.Sprintf("%s: %d of %d passed in %v", r.Group, len(r.Passed), len(r.Passed)+len(r.Failed), r.Took.Round(time.Second))
}

// firstLine returns the first line of what became of a spec, without the end of a long one: some
// messages are whole pods.
func firstLine(text string) string {
	line, _, _ := strings.Cut(cmp.Or(text, "didn't run"), "\n")
	return line[:min(len(line), 200)]
}

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
				r.Excepted++
			} else {
				r.add(spec)
			}
		}
		// It was interrupted, its time was up, or a process of it was killed.
		if reasons := strings.Join(suite.SpecialSuiteFailureReasons, ", "); !suite.SuiteSucceeded && (reasons != "" || len(r.Failed) == 0) {
			r.Unfinished = cmp.Or(reasons, "it didn't end")
		}
	}
	if len(suites) == 0 {
		err = errors.New("it has no suite")
	}
	return r, err
}

func (r *result) add(spec types.SpecReport) {
	switch {
	case spec.State == types.SpecStateInterrupted:
		r.Unfinished = "it was interrupted"
	case spec.State.Is(types.SpecStateFailureStates):
		name := spec.FullText()
		if name == "" {
			name = spec.LeafNodeType.String()
		}
		r.Failed = append(r.Failed, failure{Name: name, Message: strings.TrimSpace(spec.Failure.Message)})
	case spec.LeafNodeType != types.NodeTypeIt:
	case spec.State == types.SpecStatePassed:
		r.Passed = append(r.Passed, spec.FullText())
	case spec.State == types.SpecStateSkipped && spec.Failure.Message != "":
		r.Skipped++
	}
}

// table renders results in Markdown. A spec that failed counts as failed, also if it passed alone.
func table(results []result) string {
	var b strings.Builder
	fmt.Fprintln(&b, "| group | passed | failed | of these, passed alone | not applicable | excepted | time |\n|---|---|---|---|---|---|---|")
	sum := result{Group: "all"}
	row := func(r result) {
		alone := 0
		for _, f := range r.Failed {
			if f.Alone == passedAlone {
				alone++
			}
		}
		took := r.Took.Round(time.Second).String()
		if r.Unfinished != "" {
			took = "not ended: " + r.Unfinished
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %s |\n", r.Group, len(r.Passed), len(r.Failed), alone, r.Skipped, r.Excepted, took)
	}
	for _, r := range results {
		row(r)
		sum.Passed, sum.Failed = append(sum.Passed, r.Passed...), append(sum.Failed, r.Failed...)
		sum.Skipped, sum.Excepted, sum.Took = sum.Skipped+r.Skipped, sum.Excepted+r.Excepted, sum.Took+r.Took
		if r.Unfinished != "" {
			sum.Unfinished = "see above"
		}
	}
	row(sum)
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
	if err != nil || !slices.Equal(r.Passed, []string{"spec"}) || r.Skipped != 1 || r.Excepted != 1 ||
		!slices.Equal(r.Failed, []failure{{Name: "spec", Message: "no"}, {Name: "spec", Message: "late"}}) {
		t.Errorf("%+v %v", r, err)
	}
}

// A spec that failed once has failed, whatever a second run says.
func TestTable(t *testing.T) {
	first := result{Group: "node", Passed: []string{"a"}, Skipped: 3, Excepted: 1, Took: time.Minute,
		Failed: []failure{{Name: "b", Message: "no"}, {Name: "c", Message: "no"}, {Name: "d", Message: "no"}}}
	first.diagnose(result{Passed: []string{"b"}, Failed: []failure{{Name: "c", Message: "never\nmore"}}})
	if want := []failure{{"b", "no", "passed"}, {"c", "no", "never\nmore"}, {"d", "no", ""}}; !slices.Equal(first.Failed, want) {
		t.Errorf("got %q, want %q", first.Failed, want)
	}
	got := table([]result{first, {Group: "apps", Passed: []string{"e", "f"}, Took: time.Second}, {Group: "cli", Passed: []string{"g"}, Unfinished: "killed"}})
	want := `| group | passed | failed | of these, passed alone | not applicable | excepted | time |
|---|---|---|---|---|---|---|
| node | 1 | 3 | 1 | 3 | 1 | 1m0s |
| apps | 2 | 0 | 0 | 0 | 0 | 1s |
| cli | 1 | 0 | 0 | 0 | 0 | not ended: killed |
| all | 4 | 3 | 1 | 3 | 1 | not ended: see above |
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := firstLine(first.Failed[1].Alone) + ", " + firstLine(first.Failed[2].Alone); got != "never, didn't run" {
		t.Error(got)
	}
}

func TestToDiagnose(t *testing.T) {
	r := result{Failed: make([]failure, maxDiagnosed+1)}
	if got := r.toDiagnose(); len(got) != maxDiagnosed {
		t.Errorf("%d specs run again", len(got))
	}
	if got := new(result).toDiagnose(); got != nil {
		t.Error(got)
	}
}

// A suite that was interrupted hasn't ended, whatever became of its specs until then.
func TestReadReportOfInterruptedSuite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	nothing := func(types.SpecReport) bool { return false }
	for text, want := range map[string]string{
		`[{"SuiteSucceeded": false, "SpecialSuiteFailureReasons": ["Interrupted by User"]}]`: "Interrupted by User",
		`[{"SuiteSucceeded": false, "SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"],
			"SpecReports": [{"LeafNodeType": "It", "LeafNodeText": "spec", "State": "failed"}]}]`: "Suite Timeout Elapsed",
		`[{"SuiteSucceeded": false, "SpecReports": [{"LeafNodeType": "It", "LeafNodeText": "spec", "State": "interrupted"}]}]`: "it didn't end",
		`[{"SuiteSucceeded": false, "SpecReports": [{"LeafNodeType": "It", "LeafNodeText": "spec", "State": "failed"}]}]`:      "",
		`[{"SuiteSucceeded": true}]`: "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if r, err := readReport(path, nothing); err != nil || r.Unfinished != want {
			t.Errorf("%s: %+v %v", text, r, err)
		}
	}
	if err := os.WriteFile(path, []byte("[]"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readReport(path, nothing); err == nil {
		t.Error("a report without a suite is one of success")
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
