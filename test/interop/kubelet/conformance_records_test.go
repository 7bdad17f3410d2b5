package kubelet

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/atomicfile"
)

// records is a directory with what became of the groups at one commit. A whole run takes longer than
// some machines are there. So a run goes on where another one of the same commit has ended.
type records string

// recordsIn returns the records of what the flags say is tested.
func recordsIn(out string) records {
	name := cmp.Or(*commit, "unknown")
	if withoutProxy() {
		name += "-without-proxy"
	}
	if *count > 1 {
		name += fmt.Sprintf("-%d-%s", *count, *backend)
	}
	return records(filepath.Join(out, name))
}

// What is Unfinished of a group that never ran, and of one that runs or whose run was killed.
const (
	neverRan = "it hasn't run"
	killed   = "it was killed"
)

func (r records) path(group string) string { return filepath.Join(string(r), group+".json") }

// read returns what became of a group. A record that can't be read is none.
func (r records) read(group string) result {
	var res result
	text, err := os.ReadFile(r.path(group))
	if err != nil || json.Unmarshal(text, &res) != nil {
		return result{Group: group, Unfinished: neverRan}
	}
	return res
}

func (r records) write(res result) error {
	if err := os.MkdirAll(string(r), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(res, "", "\t")
	if err != nil {
		return err
	}
	return atomicfile.Write(r.path(res.Group), append(text, '\n'), 0o644)
}

// begin keeps a record that a group has begun. What has failed in a run of it that was killed or
// interrupted has failed for good.
func (r records) begin(res *result) error {
	if before := r.read(res.Group); before.Unfinished != "" && r.conclusive(res.Group) {
		res.alsoFailed(before.Failed)
		res.alsoFailed(failedIn(before.Log))
	}
	return r.write(*res)
}

// alsoFailed adds failures of an earlier run, which ended before the group did.
func (r *result) alsoFailed(before []failure) {
	for _, f := range before {
		same := func(name string) bool { return strings.HasPrefix(name, f.Name) || strings.HasPrefix(f.Name, name) } // logs add labels
		r.Passed = slices.DeleteFunc(r.Passed, same)
		if !slices.ContainsFunc(r.Failed, func(other failure) bool { return same(other.Name) }) {
			r.Failed = append(r.Failed, f)
		}
	}
}

// conclusive reports whether a group that has ended doesn't run again. Changes that aren't committed
// may have changed everything.
func (r records) conclusive(name string) bool {
	return *commit != "" && !strings.HasSuffix(*commit, "-dirty") && slices.ContainsFunc(groups, func(g group) bool { return g.name == name })
}

// pending returns which of these groups are to run, with those first that take longest.
func (r records) pending(of []group) <-chan group {
	queue := make(chan group, len(of))
	for _, g := range slices.SortedStableFunc(slices.Values(of), func(a, b group) int { return b.minutes - a.minutes }) {
		if r.read(g.name).Unfinished != "" || !r.conclusive(g.name) {
			queue <- g
		}
	}
	close(queue)
	return queue
}

// table renders all records, with what was tested and when.
func (r records) table() string {
	var results []result
	var first, last time.Time
	for _, g := range groups {
		res := r.read(g.name)
		results = append(results, res)
		if !res.Began.IsZero() && (first.IsZero() || res.Began.Before(first)) {
			first = res.Began
		}
		if end := res.Began.Add(res.Took); end.After(last) {
			last = end
		}
	}
	const layout = "2 January 2006 15:04"
	return fmt.Sprintf("%s as the node, %s, from %s to %s UTC:\n\n%s", *nodeKind, filepath.Base(string(r)),
		first.UTC().Format(layout), last.UTC().Format(layout), table(results))
}

// failedIn returns the specs that have failed by a log of Ginkgo's. It writes its report only at the
// end, and the log all the time.
func failedIn(log string) (list []failure) {
	f, err := os.Open(log)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20) // some lines are whole objects
	for lines.Scan() {
		if failedHeader.MatchString(lines.Text()) && lines.Scan() {
			name := strings.Replace(strings.TrimSpace(lines.Text()), "[It] ", "", 1)
			list = append(list, failure{Name: name, Message: "it failed in a run that didn't end"})
		}
	}
	return list
}

var failedHeader = regexp.MustCompile(`^• \[(FAILED|PANICKED!?)\]`)

// setCommit sets the commit that is tested, for this test.
func setCommit(t *testing.T, to string) {
	was := *commit
	*commit = to
	t.Cleanup(func() { *commit = was })
}

func pendingNames(r records, of []group) (names []string) {
	for g := range r.pending(of) {
		names = append(names, g.name)
	}
	return names
}

// A run goes on with what an earlier one of the same commit hasn't ended, and ends nothing twice: a
// group that has failed doesn't pass later.
func TestRecords(t *testing.T) {
	setCommit(t, "abc1234")
	r := recordsIn(t.TempDir())
	of := []group{{name: "auth", minutes: 1}, {name: "node", minutes: 30}, {name: "cli", minutes: 7}, {name: "apps", minutes: 20}}
	if got := pendingNames(r, of); !slices.Equal(got, []string{"node", "apps", "cli", "auth"}) {
		t.Error(got)
	}
	for _, res := range []result{
		{Group: "node", Passed: []string{"a"}, Began: time.Unix(0, 0), Took: time.Minute},
		{Group: "auth", Failed: []failure{{Name: "b"}}, Began: time.Unix(60, 0), Took: time.Minute},
		{Group: "cli", Unfinished: killed, Began: time.Unix(120, 0)},
	} {
		if err := r.write(res); err != nil {
			t.Fatal(err)
		}
	}
	if got := pendingNames(r, of); !slices.Equal(got, []string{"apps", "cli"}) {
		t.Error(got)
	}
	for _, want := range []string{
		"abc1234, from 1 January 1970 00:00 to 1 January 1970 00:02 UTC", "| node | 1 | 0 |", "| auth | 0 | 1 |",
		"| cli | 0 | 0 | 0 | 0 | 0 | not ended: it was killed |", "| apps | 0 | 0 | 0 | 0 | 0 | not ended: it hasn't run |",
		"| all | 1 | 1 | 0 | 0 | 0 | not ended: see above |",
	} {
		if got := r.table(); !strings.Contains(got, want) {
			t.Errorf("%q isn't in\n%s", want, got)
		}
	}
	if got := pendingNames(r, []group{{name: "focus"}, {name: "node-focus"}}); len(got) != 2 {
		t.Errorf("of the parts of groups, only %q run", got)
	}
	setCommit(t, "abc1234-dirty")
	if got := pendingNames(r, of); len(got) != len(of) {
		t.Errorf("only %q run, though there are changes that aren't committed", got)
	}
}

// What has failed before a group was killed fails the group when it runs again.
func TestFailuresOfKilledGroup(t *testing.T) {
	setCommit(t, "abc1234")
	dir := t.TempDir()
	r := recordsIn(dir)
	log := filepath.Join(dir, "node.log")
	text := "••••S\n------------------------------\n• [FAILED] [1.2 seconds]\n[sig-node] Pods [It] should run [sig-node]\nk8s.io/x.go:1\n\n  [FAILED] no\n" +
		"------------------------------\n• [INTERRUPTED] [3 seconds]\n[sig-node] Pods [It] should wait\n"
	if err := os.WriteFile(log, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	first := result{Group: "node", Unfinished: killed, Log: log}
	second, third := first, first
	for _, attempt := range []*result{&first, &second, &third} {
		if err := r.begin(attempt); err != nil {
			t.Fatal(err)
		}
	}
	if len(first.Failed) != 0 {
		t.Errorf("before it ran, %v has failed", first.Failed)
	}
	ended := result{Group: "node", Passed: []string{"[sig-node] Pods should run", "[sig-node] Pods should wait"}}
	ended.alsoFailed(third.Failed)
	if len(ended.Passed) != 1 {
		t.Errorf("%q have passed", ended.Passed)
	}
	for _, res := range []result{second, third, r.read("node"), ended} {
		if len(res.Failed) != 1 || !strings.HasPrefix(res.Failed[0].Name, "[sig-node] Pods should run") {
			t.Errorf("%+v", res)
		}
	}
}
