package podflags

import (
	"bytes"
	"encoding/json"

	"sigs.k8s.io/yaml"
)

// Manifest returns the objects as one YAML file, without the fields that only an API server sets.
func (f *Flags) Manifest(image string, command []string, host Host) ([]byte, error) {
	pod, claims, err := f.Objects(image, command, host)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, c := range claims {
		if err := document(&all, c); err != nil {
			return nil, err
		}
		all.WriteString("---\n")
	}
	err = document(&all, pod)
	return all.Bytes(), err
}

func document(to *bytes.Buffer, object any) error {
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	delete(fields, "status")
	if meta, ok := fields["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	data, err = yaml.Marshal(fields)
	to.Write(data)
	return err
}
