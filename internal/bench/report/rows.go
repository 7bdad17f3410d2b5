package report

import (
	"fmt"
	"strconv"
)

// Header and Against are the header of the rows that Rows returns. Against is used only with an
// earlier report to compare with.
var (
	Header  = []string{"WORKLOAD", "WHAT", "ENDPOINT", "COUNT", "ERRORS", "P50", "P90", "P99", "MAX", "UNIT", "PER SECOND", "RATIO"}
	Against = []string{"BEFORE", "CHANGE"}
)

// Rows returns the rows of the table of a report, grouped by operation and figure. RATIO is
// relative to the first endpoint of the report, BEFORE and CHANGE to an earlier report.
func Rows(r Report, before *Report) [][]string {
	var rows [][]string
	done := map[string]bool{}
	for _, lead := range r.Results {
		if done[lead.Workload] {
			continue
		}
		done[lead.Workload] = true
		all := r.of(lead.Workload)
		for _, name := range names(all, func(res Result) (out []string) {
			for _, o := range res.Operations {
				out = append(out, o.Name)
			}
			return out
		}) {
			for _, res := range all {
				rows = append(rows, operationRow(res, all[0], before, name)...)
			}
		}
		for _, name := range names(all, func(res Result) (out []string) {
			for _, f := range res.Figures {
				out = append(out, f.Name)
			}
			return out
		}) {
			for _, res := range all {
				rows = append(rows, figureRow(res, all[0], before, name)...)
			}
		}
	}
	return rows
}

// of returns the results of a workload.
func (r Report) of(workload string) (all []Result) {
	for _, res := range r.Results {
		if res.Workload == workload {
			all = append(all, res)
		}
	}
	return all
}

// names returns the distinct names in all results, in their order.
func names(all []Result, of func(Result) []string) (out []string) {
	seen := map[string]bool{}
	for _, res := range all {
		for _, n := range of(res) {
			if !seen[n] {
				seen[n] = true
				out = append(out, n)
			}
		}
	}
	return out
}

func operationRow(res, first Result, before *Report, name string) [][]string {
	for _, o := range res.Operations {
		if o.Name != name {
			continue
		}
		row := []string{res.Workload, name, res.Endpoint, strconv.Itoa(o.Count), strconv.Itoa(o.Errors)}
		if o.Count == 0 {
			row = append(row, "", "", "", "", "ms", "", "")
			return [][]string{compared(row, before, nil, 0)}
		}
		row = append(row, Number(o.P50), Number(o.P90), Number(o.P99), Number(o.Max), "ms", Number(o.Rate), "")
		if f := first.Operation(name); f != nil && first.Endpoint != res.Endpoint {
			row[len(row)-1] = Ratio(o.P50, f.P50)
		}
		var was *float64
		if before != nil {
			if b := before.Result(res.Workload, res.Endpoint).Operation(name); b != nil {
				was = &b.P50
			}
		}
		return [][]string{compared(row, before, was, o.P50)}
	}
	return nil
}

func figureRow(res, first Result, before *Report, name string) [][]string {
	for _, f := range res.Figures {
		if f.Name != name {
			continue
		}
		row := []string{res.Workload, name, res.Endpoint, "", "", Number(f.Value), "", "", "", f.Unit, "", ""}
		if f.Absent != "" {
			row[5] = "not measurable here: " + f.Absent
			return [][]string{compared(row, before, nil, 0)}
		}
		if one := first.Figure(name); one != nil && first.Endpoint != res.Endpoint {
			row[len(row)-1] = Ratio(f.Value, one.Value)
		}
		var was *float64
		if before != nil {
			if b := before.Result(res.Workload, res.Endpoint).Figure(name); b != nil {
				was = &b.Value
			}
		}
		return [][]string{compared(row, before, was, f.Value)}
	}
	return nil
}

// compared appends the columns of an earlier report, if there is one.
func compared(row []string, before *Report, was *float64, now float64) []string {
	switch {
	case before == nil:
		return row
	case was == nil:
		return append(row, "", "")
	case *was == 0:
		return append(row, Number(*was), "")
	}
	return append(row, Number(*was), fmt.Sprintf("%+.0f%%", 100*(now / *was - 1)))
}
