package input

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/manifest"
)

// Check validates a manifest as huskd does, except for what needs the node. It returns a line for
// each pod and object, and for those without effect.
func Check(m Manifest) ([]string, error) {
	shown := m.Name
	if m.Name == Stdin {
		shown = "standard input"
	}
	file, err := manifest.Parse(m.Data, manifest.Origin{File: shown, Node: "node", Source: "run", Policies: true, Services: true})
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, p := range file.Pods {
		lines = append(lines, fmt.Sprintf("pod %s/%s is valid", p.Namespace, p.Name))
	}
	for _, w := range file.Workloads {
		lines = append(lines, fmt.Sprintf("%s is valid", w.Ref))
	}
	for _, d := range file.Documents {
		lines = append(lines, fmt.Sprintf("%s %s is valid", strings.ToLower(d.Kind), strings.TrimPrefix(d.Namespace+"/"+d.Name, "/")))
	}
	for _, u := range file.Unused {
		lines = append(lines, fmt.Sprintf("%s: %v", shown, u))
	}
	return lines, nil
}

// JSON returns the documents of a manifest as JSON.
func JSON(data []byte) ([][]byte, error) {
	parts := strings.Split(string(data), "\n---\n")
	all := make([][]byte, 0, len(parts))
	for _, part := range parts {
		document, err := yaml.YAMLToJSON([]byte(part))
		if err != nil {
			return nil, err
		}
		all = append(all, document)
	}
	return all, nil
}
