package fields

import (
	"fmt"
	"strings"
)

// escape keeps Markdown from reading a table's border or HTML into a text.
var escape = strings.NewReplacer("|", `\|`, "<", "&lt;")

// Reference returns the reference page of manifests, in Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Pod manifests

A manifest is a file in YAML or JSON with one or more documents, each a
Kubernetes v1 Pod, PodList or List of pods, or a ConfigMap or Secret that pods
of the same file, or of the same directory of manifests, refer to. It is read strictly: a field that
doesn't exist, is given twice or is not in one of the tables below makes the
whole file be refused, with a line for each problem. A field set to what it
would be anyway (false, 0, an empty string or list, null) counts as not set.
`)
	for _, section := range []struct {
		how          How
		title, intro string
	}{
		{Honoured, "Fields that are honoured", ""},
		{Ignored, "Fields that are accepted and have no effect", ""},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| field | meaning |\n|---|---|\n", section.title)
		for _, f := range All() {
			if f.How != section.how || strings.HasPrefix(f.Path, "spec.initContainers[].") && f.Path != sidecarField.Path {
				continue
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", f.Path, escape.Replace(f.Meaning))
		}
		if section.how == Honoured {
			b.WriteString("\nWhat `spec.containers[]` may have, `spec.initContainers[]` may have too.\n")
		}
	}
	return b.String()
}
