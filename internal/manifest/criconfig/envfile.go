package criconfig

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// EnvFile is a file in a volume that has variables, as fileKeyRef names it.
type EnvFile struct{ Volume, Path string }

// EnvFiles returns the files that the variables of a container are read from. A file may occur
// several times.
func EnvFiles(c *corev1.Container) []EnvFile {
	var out []EnvFile
	for _, e := range c.Env {
		if from := e.ValueFrom; from != nil && from.FileKeyRef != nil {
			out = append(out, EnvFile{from.FileKeyRef.VolumeName, from.FileKeyRef.Path})
		}
	}
	return out
}

// fileValue returns the value of a variable in a file. An optional variable may lack its file or
// its key.
func fileValue(files map[EnvFile][]byte, ref *corev1.FileKeySelector) (value string, set bool, err error) {
	content, exists := files[EnvFile{ref.VolumeName, ref.Path}]
	if value, set, err = parseEnvFile(string(content), ref.Key); err != nil {
		return "", false, fmt.Errorf("file %s of volume %s: %w", ref.Path, ref.VolumeName, err)
	}
	switch {
	case set || isTrue(ref.Optional):
		return value, set, nil
	case !exists:
		return "", false, fmt.Errorf("volume %s has no file %s: write it in an init container", ref.VolumeName, ref.Path)
	}
	return "", false, fmt.Errorf("file %s of volume %s has no variable %s", ref.Path, ref.VolumeName, ref.Key)
}

const blanks = " \t"

// parseEnvFile returns the first value of a variable in a file. The format is Kubernetes': lines
// NAME='value', where the value may span lines and has no escapes. A comment may follow it. Blank
// lines and comments are skipped. As in a shell, white space instead of a value is an empty value.
// Lines after the variable are not checked.
func parseEnvFile(content, key string) (value string, found bool, err error) {
	content = strings.ReplaceAll(content, "\r\n", "\n")
	for number := 1; content != ""; number++ {
		line, rest, _ := strings.Cut(content, "\n")
		line = strings.TrimLeft(line, blanks)
		if line == "" || line[0] == '#' {
			content = rest
			continue
		}
		name, after, ok := strings.Cut(line, "=")
		if !ok || name == "" || strings.TrimRight(name, blanks) != name {
			return "", false, fmt.Errorf("line %d is not NAME='value'", number)
		}
		value := ""
		if strings.TrimLeft(after, blanks) == after { // not empty as in NAME= 'value'
			_, quoted, _ := strings.Cut(content, "=")
			quoted, ok := strings.CutPrefix(quoted, "'")
			if !ok {
				return "", false, fmt.Errorf("line %d: the value of %s is not in single quotes", number, name)
			}
			if value, content, ok = strings.Cut(quoted, "'"); !ok {
				return "", false, fmt.Errorf("line %d: the value of %s has no closing quote", number, name)
			}
			line, rest, _ = strings.Cut(content, "\n")
			if line = strings.TrimLeft(line, blanks); line != "" && line[0] != '#' {
				return "", false, fmt.Errorf("line %d: only a comment may follow the value of %s", number, name)
			}
			number += strings.Count(value, "\n")
		}
		if name == key {
			return value, true, nil
		}
		content = rest
	}
	return "", false, nil
}
