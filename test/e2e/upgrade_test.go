package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/test/node"
)

var golden = flag.Bool("golden", false, "write the journal of this huskd to testdata, as that of the last release")

// lastRelease is the journal of the last release's huskd, with upgradeExamples and upgradeWorkload.
const lastRelease = "testdata/upgrade/journal"

var upgradeExamples = []string{"web.yaml", "configured.yaml", "hostport.yaml", "shared-processes.yaml"}

const upgradeWorkload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: echo}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "localhost/web:1"}]}
`

// TestJournalOfLastRelease starts huskd with the journal of the last release: it sets no record
// aside and runs the same pods. Every field of the old records must still be one of the new ones:
// JSON would drop the value of a renamed one without an error.
func TestJournalOfLastRelease(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	for _, name := range upgradeExamples {
		path, err := filepath.Abs("../../examples/" + name)
		if err != nil {
			t.Fatal(err)
		}
		n.MustHusk("run", "--wait", path)
	}
	n.MustHusk("run", "--wait", write(t, n, "echo.yaml", upgradeWorkload))
	node.Eventually(t, time.Minute, func() string { return lacksText(n.MustHusk("ps"), "0/") })
	pods := names(n)
	d.Kill()
	written := n.Path(filepath.Join(n.Root, "journal/journal"))
	data, err := os.ReadFile(written)
	if err != nil {
		t.Fatal(err)
	}
	if *golden {
		if err := os.WriteFile(lastRelease, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before, now := fieldsOf(t, lastRelease), fieldsOf(t, written)
	for _, field := range before {
		if !slices.Contains(now, field) {
			t.Errorf("the last release's records have the field %s, which this huskd doesn't write: does it still read it?", field)
		}
	}
	d = n.Huskd()
	removeAll(n)
	d.Kill()

	old, err := os.ReadFile(lastRelease)
	if err == nil {
		err = os.WriteFile(written, old, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d = n.Huskd()
	node.Eventually(t, time.Minute, func() string {
		if got := names(n); got != pods {
			return "the pods of the last release's journal are\n" + got + "\nwant\n" + pods
		}
		return ""
	})
	if log := d.Log(); strings.Contains(log, "set aside") {
		t.Errorf("huskd's log is %s", log)
	}
	removeAll(n)
	n.MustHusk("shutdown")
	d.Wait(time.Minute)
}

// lacksText returns a message if text contains unwanted.
func lacksText(text, unwanted string) string {
	if strings.Contains(text, unwanted) {
		return text
	}
	return ""
}

// removeAll removes what TestJournalOfLastRelease runs.
func removeAll(n *node.Node) {
	n.MustHusk("rm", "-f", "deployment/echo")
	for line := range strings.Lines(names(n)) {
		if name, _, _ := strings.Cut(line, " "); name != "NAME" && name != "echo" {
			n.MustHusk("rm", "-f", name)
		}
	}
}

// names returns the names of the pods and how many of their containers are ready.
func names(n *node.Node) string {
	var list []string
	for line := range strings.Lines(n.MustHusk("ps")) {
		f := strings.Fields(line)
		list = append(list, podHash.ReplaceAllString(f[0], "")+" "+f[1])
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// podHash is the end of the names of a Deployment's pods.
var podHash = regexp.MustCompile(`-[a-z0-9]+-[a-z0-9]{5}$`)

// fieldsOf returns the kinds of records in a journal, each with the paths of its fields.
func fieldsOf(t *testing.T, file string) (fields []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "journal"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	j, _, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for key, value := range j.All("") {
		kind, _, _ := strings.Cut(key, "/")
		var v any
		if json.Unmarshal(value, &v) != nil {
			continue // a CRI message: protobuf keeps the numbers of fields
		}
		fields = appendFields(fields, kind, v)
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

// fieldName is a key that is a field's name, and not what a map of a record is indexed by.
var fieldName = regexp.MustCompile(`^[A-Za-z][A-Za-z]*$`)

func appendFields(fields []string, path string, v any) []string {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if fieldName.MatchString(key) {
				fields = append(fields, path+"."+key)
				fields = appendFields(fields, path+"."+key, value)
			}
		}
	case []any:
		for _, value := range v {
			fields = appendFields(fields, path+"[]", value)
		}
	}
	return fields
}
