// Package report holds the results of a benchmark: summaries of samples, their comparison, and the
// page that shows them. It is pure.
package report

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Format is the version of the JSON format of a Report. Adding fields does not change it.
const Format = 1

// Report is the result of one run of husk bench.
type Report struct {
	Format    int        `json:"format"`
	Began     time.Time  `json:"began"`
	Seconds   float64    `json:"seconds"` // duration of the run
	Machine   Machine    `json:"machine"`
	Endpoints []Endpoint `json:"endpoints"`
	Results   []Result   `json:"results"`
}

// Machine describes where the run took place.
type Machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory int64  `json:"memory"` // bytes
	Cgroup string `json:"cgroup"` // v1, hybrid or v2
	// Load averages of one minute, before and after the run.
	LoadBefore float64 `json:"loadBefore"`
	LoadAfter  float64 `json:"loadAfter"`
}

// Endpoint is a runtime that was measured.
type Endpoint struct {
	Name    string `json:"name"`
	Socket  string `json:"socket"`
	Runtime string `json:"runtime"` // name and version of the runtime
}

// Result is the result of one workload on one endpoint.
type Result struct {
	Workload string `json:"workload"`
	// Endpoint is the name of an endpoint, or of what else the workload compares.
	Endpoint   string      `json:"endpoint"`
	Operations []Operation `json:"operations,omitempty"`
	Figures    []Figure    `json:"figures,omitempty"`
	// Failures are the first few different errors.
	Failures []string `json:"failures,omitempty"`
}

// Operation is a repeated operation. Times are in milliseconds and exclude failures.
type Operation struct {
	Name    string    `json:"name"`
	Count   int       `json:"count"`
	Errors  int       `json:"errors"`
	Rate    float64   `json:"rate"` // per second
	P50     float64   `json:"p50"`
	P90     float64   `json:"p90"`
	P99     float64   `json:"p99"`
	Max     float64   `json:"max"`
	Samples []float64 `json:"samples"` // in the order in which they were taken
}

// Figure is a single number. Absent says why there is none.
type Figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"`
	Absent string  `json:"absent,omitempty"`
}

// Summarise returns the Operation for its samples. elapsed is the time in which they were taken,
// from which the rate is computed; if it is 0, they were taken one after another.
func Summarise(name string, samples []time.Duration, errors int, elapsed time.Duration) Operation {
	o := Operation{Name: name, Count: len(samples), Errors: errors, Samples: []float64{}}
	var sum time.Duration
	for _, d := range samples {
		sum += d
		o.Samples = append(o.Samples, milliseconds(d))
	}
	if elapsed <= 0 {
		elapsed = sum
	}
	if elapsed > 0 {
		o.Rate = float64(len(samples)) / elapsed.Seconds()
	}
	sorted := slices.Sorted(slices.Values(o.Samples))
	o.P50, o.P90, o.P99, o.Max = Quantile(sorted, 0.5), Quantile(sorted, 0.9), Quantile(sorted, 0.99), Quantile(sorted, 1)
	return o
}

// milliseconds rounds to the precision of a measurement.
func milliseconds(d time.Duration) float64 { return math.Round(float64(d)/100) / 10_000 }

// Quantile returns the smallest of the sorted values that is not less than a fraction q of them
// (the nearest rank); 0 if there are none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Result returns the result of a workload on an endpoint; nil if there is none.
func (r Report) Result(workload, endpoint string) *Result {
	for i := range r.Results {
		if r.Results[i].Workload == workload && r.Results[i].Endpoint == endpoint {
			return &r.Results[i]
		}
	}
	return nil
}

// Operation returns the operation with that name; nil if it never succeeded.
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

// Figure returns the figure with that name; nil if it is absent.
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

// Errors returns the number of operations that failed.
func (r Report) Errors() (n int) {
	for _, res := range r.Results {
		for _, o := range res.Operations {
			n += o.Errors
		}
	}
	return n
}

// Turns returns the order in which k endpoints take their turns in round i. Each order is followed
// by its reverse, so that a slow drift affects all endpoints alike.
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

// Ratio formats a/b; "" if it is undefined.
func Ratio(a, b float64) string {
	if b == 0 || math.IsNaN(a/b) {
		return ""
	}
	return Number(a/b) + "×"
}

// Number formats a number with three significant digits where it has that many.
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
