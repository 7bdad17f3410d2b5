package report

import (
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	ten := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0, 7},
		{[]float64{7}, 0.99, 7},
		{ten, 0, 1},
		{ten, 0.1, 1},
		{ten, 0.5, 5},
		{ten, 0.51, 6},
		{ten, 0.9, 9},
		{ten, 0.99, 10},
		{ten, 1, 10},
	} {
		if got := Quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile %v of %v: %v, want %v", c.q, c.values, got, c.want)
		}
	}
}

func TestSummarise(t *testing.T) {
	o := Summarise("op", []time.Duration{30 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 1540 * time.Nanosecond}, 2, 0)
	if o.P50 != 10 || o.P90 != 30 || o.Max != 30 || o.Count != 4 || o.Errors != 2 {
		t.Errorf("%+v", o)
	}
	if want := []float64{30, 10, 20, 0.0015}; !slices.Equal(o.Samples, want) {
		t.Errorf("samples %v, want them in their order and rounded: %v", o.Samples, want)
	}
	if o.Rate < 66 || o.Rate > 67 {
		t.Errorf("rate %v of four in 60 ms", o.Rate)
	}
	if o := Summarise("op", []time.Duration{time.Second, time.Second}, 0, time.Second); o.Rate != 2 {
		t.Errorf("rate %v of two that took a second together", o.Rate)
	}
	if o := Summarise("op", nil, 3, 0); o.Rate != 0 || o.P50 != 0 || o.Samples == nil {
		t.Errorf("nothing succeeded: %+v", o)
	}
}

func TestTurns(t *testing.T) {
	var got [][]int
	for i := range 4 {
		got = append(got, Turns(i, 3))
	}
	want := [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 2, 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Turns(5, 0); len(got) != 0 {
		t.Errorf("%v of none", got)
	}
	// The second of two consecutive rounds has the reverse order.
	for i := 0; i < 20; i += 2 {
		a, b := Turns(i, 4), Turns(i+1, 4)
		slices.Reverse(b)
		if !slices.Equal(a, b) {
			t.Errorf("round %d is not the reverse of %d", i+1, i)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.00042: "0.0004", 0.0994: "0.0994", 0.0999: "0.100", 0.5: "0.500", 0.9996: "1.00", 5.555: "5.55", 9.996: "10.0", 42.25: "42.2", 99.96: "100", 1234.5: "1234", -3: "-3.00"} {
		if got := Number(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
	if got := Ratio(1, 0); got != "" {
		t.Errorf("ratio to nothing: %q", got)
	}
	if got := Ratio(1, 4); got != "0.250×" {
		t.Errorf("ratio %q", got)
	}
}

// sample returns a report of two endpoints, one of which has failures.
func sample() Report {
	return Report{
		Format: Format, Began: time.Unix(1_800_000_000, 0),
		Endpoints: []Endpoint{{"containerd", "/run/a.sock", "containerd 2"}, {"husk", "/run/b.sock", "husk <1> & more"}},
		Results: []Result{
			{
				Workload: "pods", Endpoint: "containerd",
				Operations: []Operation{Summarise("run", []time.Duration{100 * time.Millisecond}, 0, 0), Summarise("stop", nil, 3, 0)},
				Figures:    []Figure{{Name: "memory", Unit: "MB", Value: 80}, {Name: "flushes", Absent: "tracefs: not permitted"}},
				Failures:   []string{"stop: it <b>hangs</b>"},
			},
			{
				Workload: "pods", Endpoint: "husk",
				Operations: []Operation{Summarise("run", []time.Duration{5 * time.Millisecond}, 0, 0), Summarise("stop", []time.Duration{2 * time.Millisecond}, 0, 0)},
				Figures:    []Figure{{Name: "memory", Unit: "MB", Value: 20}, {Name: "flushes", Value: 0}},
			},
			{Workload: "net", Endpoint: "bare", Operations: []Operation{Summarise("run", []time.Duration{time.Microsecond}, 0, 0)}},
		},
	}
}

func TestRows(t *testing.T) {
	want := [][]string{
		{"pods", "run", "containerd", "1", "0", "100", "100", "100", "100", "ms", "10.0", ""},
		{"pods", "run", "husk", "1", "0", "5.00", "5.00", "5.00", "5.00", "ms", "200", "0.0500×"},
		{"pods", "stop", "containerd", "0", "3", "", "", "", "", "ms", "", ""},
		{"pods", "stop", "husk", "1", "0", "2.00", "2.00", "2.00", "2.00", "ms", "500", ""},
		{"pods", "memory", "containerd", "", "", "80.0", "", "", "", "MB", "", ""},
		{"pods", "memory", "husk", "", "", "20.0", "", "", "", "MB", "", "0.250×"},
		{"pods", "flushes", "containerd", "", "", "not measurable here: tracefs: not permitted", "", "", "", "", "", ""},
		{"pods", "flushes", "husk", "", "", "0", "", "", "", "", "", ""},
		{"net", "run", "bare", "1", "0", "0.0010", "0.0010", "0.0010", "0.0010", "ms", "1000000", ""},
	}
	got := Rows(sample(), nil)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !slices.Equal(got[i], want[i]) {
			t.Fatalf("row %d:\n got %q\nwant %q", i, got, want)
		}
		if len(got[i]) != len(Header) {
			t.Errorf("row %d has %d cells, the header %d", i, len(got[i]), len(Header))
		}
	}
}

func TestRowsCompare(t *testing.T) {
	now, before := sample(), sample()
	before.Results = before.Results[1:] // containerd is missing before
	before.Results[0].Operations[0].P50 = 10
	before.Results[0].Figures[0].Value = 0
	got := map[string][]string{}
	for _, row := range Rows(now, &before) {
		if len(row) != len(Header)+len(Against) {
			t.Fatalf("%d cells in %q", len(row), row)
		}
		got[row[1]+" of "+row[2]] = row[len(Header):]
	}
	for what, want := range map[string][]string{
		"run of containerd":     {"", ""},
		"run of husk":           {"10.0", "-50%"},
		"stop of husk":          {"2.00", "+0%"},
		"memory of husk":        {"0", ""},
		"flushes of containerd": {"", ""},
	} {
		if !slices.Equal(got[what], want) {
			t.Errorf("%s: %q, want %q", what, got[what], want)
		}
	}
}

func TestLookup(t *testing.T) {
	r := sample()
	for what, missing := range map[string]bool{
		"an operation that only failed": r.Result("pods", "containerd").Operation("stop") == nil,
		"an absent figure":              r.Result("pods", "containerd").Figure("flushes") == nil,
		"an unknown workload":           r.Result("exec", "husk").Operation("run") == nil,
		"an unknown figure":             r.Result("exec", "husk").Figure("run") == nil,
	} {
		if !missing {
			t.Errorf("%s was found", what)
		}
	}
	if r.Result("pods", "husk").Operation("run") == nil || r.Result("pods", "husk").Figure("memory") == nil {
		t.Error("an existing operation or figure was not found")
	}
	if r.Errors() != 3 {
		t.Errorf("%d errors", r.Errors())
	}
}

// TestPage checks that the page is well-formed and complete, escapes text from outside, and refers
// to nothing else.
func TestPage(t *testing.T) {
	r := sample()
	page := Page(r, &r)
	d := xml.NewDecoder(strings.NewReader(strings.Replace(page, "<meta charset=\"utf-8\">", "", 1)))
	d.Strict, d.AutoClose, d.Entity = true, []string{"br"}, xml.HTMLEntity
	plots := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			switch e.Name.Local {
			case "svg":
				plots++
			case "script", "link", "img", "iframe":
				t.Errorf("the page has a %s", e.Name.Local)
			}
		}
	}
	if want := 4; plots != want { // run, stop and memory of pods; run of net
		t.Errorf("%d plots, want %d", plots, want)
	}
	for _, want := range []string{"husk &lt;1&gt; &amp; more", "stop: it &lt;b&gt;hangs&lt;/b&gt;", "BEFORE", "not measurable here"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "http") {
		t.Error("the page contains a URL")
	}
}

func TestPageOfNothing(t *testing.T) {
	if page := Page(Report{}, nil); !strings.Contains(page, "</html>") {
		t.Error("no page")
	}
}

func TestScale(t *testing.T) {
	for _, c := range []struct{ low, high float64 }{{1, 1}, {0.0001, 0.0001}, {3, 4000}, {0.02, 0.5}} {
		s := scaleFor(c.low, c.high)
		for _, v := range []float64{c.low, c.high, 0} {
			if y := s.y(v); y < top || y > height-bottom {
				t.Errorf("%v on the scale of %v is at %v", v, c, y)
			}
		}
		if len(s.ticks()) < 2 {
			t.Errorf("scale of %v has ticks %v", c, s.ticks())
		}
	}
}
