package fields

import (
	"fmt"
	"strings"
)

// escape escapes text for the cells of a Markdown table.
var escape = strings.NewReplacer("|", `\|`, "<", "&lt;")

// Reference returns the reference page of manifests in Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Pod manifests

A manifest is a YAML or JSON file with one or more documents. Each document is a Kubernetes v1 Pod, PodList or List of
pods, a [workload](#workloads), one of the [other objects](#other-objects) such as a Service or a ConfigMap, or an object
[without effect](#objects-without-effect). Manifests are parsed strictly: if a field doesn't exist, is set twice or is not in one of the tables
below, the whole file is refused, with a line for each problem. A field with an empty value (false, 0, an empty string
or list, null) counts as absent.
`)
	for _, section := range []struct {
		how   How
		title string
	}{
		{Honoured, "Fields that are honoured"},
		{Ignored, "Fields that are accepted and have no effect"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| field | meaning |\n|---|---|\n", section.title)
		for _, f := range All() {
			if f.How != section.how || strings.HasPrefix(f.Path, "spec.initContainers[].") {
				continue
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", f.Path, escape.Replace(f.Meaning))
		}
		if section.how == Honoured {
			b.WriteString("\nThe fields of `spec.containers[]` apply to `spec.initContainers[]` too.\n")
		}
	}
	b.WriteString(workloadReference())
	b.WriteString(objectReference())
	return b.String()
}
