package render

import (
	"fmt"
	"slices"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// WorkloadName returns the name of a workload as users write it, such as deployment/web.
func WorkloadName(w *huskv1.Workload) string {
	return strings.ToLower(w.Kind) + "/" + PodName(w.Namespace, w.Name)
}

// OwnerName shortens the reference of a workload: the default namespace is left out.
func OwnerName(owner string) string {
	return strings.Replace(owner, "/"+defaultNamespace+"/", "/", 1)
}

// owned reports whether the table needs a column for the workloads of pods.
func owned(pods []*huskv1.Pod) bool {
	return slices.ContainsFunc(pods, func(p *huskv1.Pod) bool { return p.Owner != "" })
}

// WorkloadView is a workload in JSON and YAML.
type WorkloadView struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Phase     string    `json:"phase"`
	Message   string    `json:"message,omitempty"`
	Done      bool      `json:"done"`
	Desired   int32     `json:"desired"`
	Current   int32     `json:"current"`
	Updated   int32     `json:"updated"`
	Ready     int32     `json:"ready"`
	Available int32     `json:"available"`
	Succeeded int32     `json:"succeeded,omitempty"`
	Failed    int32     `json:"failed,omitempty"`
	Created   time.Time `json:"created"`
	Source    string    `json:"source"`
	Owner     string    `json:"owner,omitempty"`
}

// Resource returns the name by which commands take the workload.
func (v WorkloadView) Resource() string {
	return strings.ToLower(v.Kind) + "/" + PodName(v.Namespace, v.Name)
}

// WorkloadViews returns workloads for JSON and YAML.
func WorkloadViews(list []*huskv1.Workload) []WorkloadView {
	out := make([]WorkloadView, 0, len(list))
	for _, w := range list {
		out = append(out, WorkloadView{
			w.Kind, w.Namespace, w.Name, w.Phase, w.Message, w.Done, w.Desired, w.Current, w.Updated, w.Ready, w.Available,
			w.Succeeded, w.Failed, time.Unix(0, w.CreatedNs).UTC(), w.Source, w.Owner,
		})
	}
	return out
}

// WorkloadTable returns a table with a row for each workload.
func WorkloadTable(list []*huskv1.Workload, now time.Time) *Table {
	t := NewTable("NAME", "READY", "STATUS", "AGE", "MESSAGE")
	for _, w := range list {
		ready := fmt.Sprintf("%d/%d", w.Ready, w.Desired)
		switch w.Kind {
		case "Job":
			ready = fmt.Sprintf("%d/%d", w.Succeeded, w.Desired)
		case "CronJob":
			ready = none
		}
		t.Row(WorkloadName(w), ready, w.Phase, AgeAt(now, w.CreatedNs), orNone(OneLine(w.Message)))
	}
	return t
}
