package render

import (
	"fmt"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// EventTable returns a table with a row for each event; with pods, the rows name the pod.
func EventTable(events []*huskv1.Event, pods bool, now time.Time) *Table {
	header := []string{"LAST", "COUNT", "TYPE", "REASON", "OF", "MESSAGE"}
	t := NewTable(header...)
	for _, e := range events {
		t.Row(AgeAt(now, e.LastNs), e.Count, kindOf(e), e.Reason, subjectOf(e, pods), OneLine(e.Message))
	}
	return t
}

// EventLine returns the line for an event that is followed.
func EventLine(e *huskv1.Event) string {
	text := fmt.Sprintf("%s %s %s %s", time.Unix(0, e.LastNs).UTC().Format(time.RFC3339), kindOf(e).Text, Clean(e.Reason), subjectOf(e, true))
	if e.Count > 1 {
		text += fmt.Sprintf(" (%d times)", e.Count)
	}
	return text + ": " + OneLine(e.Message)
}

func kindOf(e *huskv1.Event) Cell {
	if e.Warning {
		return Cell{Text: "Warning", Style: Soon}
	}
	return Cell{Text: "Normal"}
}

func subjectOf(e *huskv1.Event, pod bool) string {
	var parts []string
	if e.Name == "" {
		return "node"
	}
	kind, name, other := strings.Cut(e.Name, "/")
	switch {
	case other: // an object that isn't a pod, such as service/web
		parts = append(parts, kind+"/"+PodName(e.Namespace, name))
	case pod:
		parts = append(parts, "pod "+PodName(e.Namespace, e.Name))
	}
	if e.Container != "" {
		parts = append(parts, "container "+e.Container)
	}
	if len(parts) == 0 {
		return "pod"
	}
	return Clean(strings.Join(parts, ", "))
}
