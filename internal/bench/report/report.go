// Package report is what a benchmark found, as values: summaries of samples,
// their comparison, and the page that shows them. It is pure.
package report

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Format of a Report as JSON. Fields may be added without a new one.
const Format = 1

// Report is one run of husk bench.
type Report struct {
	Format    int        `json:"format"`
	Began     time.Time  `json:"began"`
	Seconds   float64    `json:"seconds"` // that it took
	Machine   Machine    `json:"machine"`
	Endpoints []Endpoint `json:"endpoints"`
	Results   []Result   `json:"results"`
}

// Machine is where it was measured.
type Machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory int64  `json:"memory"` // bytes
	Cgroup string `json:"cgroup"` // v1, hybrid or v2
	// Load averages of one minute, before and after.
	LoadBefore float64 `json:"loadBefore"`
	LoadAfter  float64 `json:"loadAfter"`
}

// Endpoint is one that was measured.
type Endpoint struct {
	Name    string `json:"name"`
	Socket  string `json:"socket"`
	Runtime string `json:"runtime"` // its own name and version
}

// Result is what one workload found of one endpoint.
type Result struct {
	Workload string `json:"workload"`
	// Endpoint is the name of one, or what else the workload compares.
	Endpoint   string      `json:"endpoint"`
	Operations []Operation `json:"operations,omitempty"`
	Figures    []Figure    `json:"figures,omitempty"`
	// Failures are the first few different errors.
	Failures []string `json:"failures,omitempty"`
}

// Operation is one that was timed again and again. Times are in milliseconds,
// of those that succeeded.
type Operation struct {
	Name    string    `json:"name"`
	Count   int       `json:"count"`
	Errors  int       `json:"errors"`
	Rate    float64   `json:"rate"` // per second
	P50     float64   `json:"p50"`
	P90     float64   `json:"p90"`
	P99     float64   `json:"p99"`
	Max     float64   `json:"max"`
	Samples []float64 `json:"samples"` // in their order
}

// Figure is a single number. Absent tells why there is none.
type Figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"`
	Absent string  `json:"absent,omitempty"`
}

// Summarise makes an Operation of its samples. The rate is that of the time in
// which they were taken; a time of zero is their sum, as if one came after another.
func Summarise(name string, samples []time.Duration, errors int, within time.Duration) Operation {
	o := Operation{Name: name, Count: len(samples), Errors: errors, Samples: []float64{}}
	var sum time.Duration
	for _, d := range samples {
		sum += d
		o.Samples = append(o.Samples, milliseconds(d))
	}
	if within <= 0 {
		within = sum
	}
	if within > 0 {
		o.Rate = float64(len(samples)) / within.Seconds()
	}
	sorted := slices.Sorted(slices.Values(o.Samples))
	o.P50, o.P90, o.P99, o.Max = Quantile(sorted, 0.5), Quantile(sorted, 0.9), Quantile(sorted, 0.99), Quantile(sorted, 1)
	return o
}

// milliseconds has no more digits than a measurement is good for.
func milliseconds(d time.Duration) float64 { return math.Round(float64(d)/100) / 10_000 }

// Quantile returns the least of the sorted values that a share q of them
// doesn't exceed (the nearest rank); 0 if there are none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Result returns that of a workload and an endpoint; nil if there is none.
func (r Report) Result(workload, endpoint string) *Result {
	for i := range r.Results {
		if r.Results[i].Workload == workload && r.Results[i].Endpoint == endpoint {
			return &r.Results[i]
		}
	}
	return nil
}

// Operation returns the one of that name; nil if there is none.
func (r *Result) Operation(name string) *Operation {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Operations, func(o Operation) bool { return o.Name == name })
	if i < 0 || r.Operations[i].Count == 0 {
		return nil
	}
	return &r.Operations[i]
}

// Figure returns the one of that name; nil if there is none.
func (r *Result) Figure(name string) *Figure {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 || r.Figures[i].Absent != "" {
		return nil
	}
	return &r.Figures[i]
}

// Errors counts the operations that failed.
func (r Report) Errors() (n int) {
	for _, res := range r.Results {
		for _, o := range res.Operations {
			n += o.Errors
		}
	}
	return n
}

// Turns is the order in which k endpoints take their turn in round i: each
// order is followed by its reverse, so that what drifts slowly hits all alike.
func Turns(i, k int) []int {
	order := make([]int, k)
	for j := range order {
		order[j] = (j + i/2) % k
	}
	if i%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// Ratio spells how much of b there is in a.
func Ratio(a, b float64) string {
	if b == 0 || math.IsNaN(a/b) {
		return ""
	}
	return Number(a/b) + "×"
}

// Number spells a number with three digits where it has that many.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a < 0.0995:
		return fmt.Sprintf("%.4f", v)
	case a < 0.995:
		return fmt.Sprintf("%.3f", v)
	case a < 9.995:
		return fmt.Sprintf("%.2f", v)
	case a < 99.95:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}
