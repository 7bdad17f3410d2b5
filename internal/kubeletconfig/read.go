// Package kubeletconfig reads the configuration of a kubelet, a KubeletConfiguration of
// kubelet.config.k8s.io/v1beta1 with its drop-ins, and translates it into huskd's. What huskd
// doesn't have is named, and what would be unsafe to leave out is refused.
//
// It doesn't use Kubernetes' type, whose package brings the metrics, flags and feature gates of
// Kubernetes' components. A test holds the list of fields against it.
package kubeletconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/document"
)

const (
	apiVersion = "kubelet.config.k8s.io/v1beta1"
	kindName   = "KubeletConfiguration"
	// suffix is that of drop-ins. A kubelet skips other files of the directory.
	suffix = ".conf"
	// maxDropIns and document.MaxSize, of all files together, bound what is read.
	maxDropIns  = 1000
	maxProblems = 50
)

// value is a value in a file. Those of objects are merged from several.
type value struct {
	*document.Node
	file   string
	fields map[string]*value // of an object that is merged
	order  []string          // of fields
}

// at returns where the value is, FILE:LINE.
func (v *value) at() string { return fmt.Sprintf("%s:%d", v.file, v.Line) }

// get returns the value at a path, or nil.
func (v *value) get(path string) *value {
	for name := range strings.SplitSeq(path, ".") {
		if v = v.fields[name]; v == nil {
			return nil
		}
	}
	return v
}

// files are what is read: the merged configuration, and the names of the files.
type files struct {
	merged *value
	base   *value // the first file alone
	names  []string
}

// read reads the file and, unless dir is empty, the drop-ins below it. It merges them as a kubelet
// does (mergeKubeletConfigurations in cmd/kubelet/app/server.go): in lexical order, also those in
// subdirectories, and as JSON merge patches. Objects and maps are merged by key, lists are
// replaced, and null removes what an earlier file has.
func read(file, dir string) (*files, error) {
	room := int64(document.MaxSize)
	base, err := readFile(file, &room)
	if err != nil {
		return nil, err
	}
	out := &files{merged: base, base: base, names: []string{file}}
	if dir == "" {
		return out, nil
	}
	names, err := dropIns(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		patch, err := readFile(name, &room)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out.merged = merge(out.merged, patch)
		out.names = append(out.names, name)
	}
	return out, errors.Join(errs...)
}

// dropIns returns the drop-ins below dir, in their order. It also follows a dir that is a symbolic
// link, which a kubelet takes for a file without the suffix.
func dropIns(dir string) ([]string, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("the kubelet's drop-ins: %w", err)
	}
	if info, err := os.Stat(resolved); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("the kubelet's drop-ins: %s is not a directory", dir)
	}
	var names []string
	err = filepath.WalkDir(resolved, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != suffix {
			return err
		}
		if names = append(names, path); len(names) > maxDropIns {
			return fmt.Errorf("%s has more than %d files *%s", dir, maxDropIns, suffix)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the kubelet's drop-ins: %w", err)
	}
	return names, nil
}

// readFile reads a file and checks it, except for the values of what becomes huskd's configuration.
// It takes its size from room.
func readFile(name string, room *int64) (*value, error) {
	data, err := content(name, *room)
	if err != nil {
		return nil, err
	}
	*room -= int64(len(data))
	docs, err := document.Read(data)
	var syntax *document.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return nil, &manifest.Error{File: name, Problems: []manifest.Problem{{Line: syntax.Line, Text: syntax.Error()}}}
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(docs) == 0:
		return nil, fmt.Errorf("%s: is empty: write apiVersion: %s and kind: %s into it", name, apiVersion, kindName)
	case len(docs) > 1:
		return nil, fmt.Errorf("%s:%d: has %d documents: leave only the %s", name, docs[1].Line, len(docs), kindName)
	}
	c := checker{}
	c.header(docs[0])
	if len(c.problems) == 0 {
		c.object(docs[0], schema, "")
	}
	if len(c.problems) > 0 {
		return nil, &manifest.Error{File: name, Problems: c.problems, More: c.more}
	}
	return valueOf(docs[0], schema, name), nil
}

// content returns the content of a regular file of at most room bytes.
func content(name string, room int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("the kubelet's configuration: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the kubelet's configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, room+1))
	if err != nil {
		return nil, fmt.Errorf("the kubelet's configuration: %w", err)
	}
	if int64(len(data)) > room {
		return nil, fmt.Errorf("%s: with the files before it, it is larger than %d MiB", name, document.MaxSize>>20)
	}
	return data, nil
}

// valueOf returns the value of a document that was checked. Maps are merged like objects.
func valueOf(n *document.Node, s *node, file string) *value {
	v := &value{Node: n, file: file}
	if n.Kind != document.Object {
		return v
	}
	v.fields = map[string]*value{}
	for _, f := range n.Fields {
		inside := &node{}
		if s.inside != nil && s.inside[f.Key] != nil {
			inside = s.inside[f.Key]
		}
		v.fields[f.Key] = valueOf(f.Value, inside, file)
		v.order = append(v.order, f.Key)
	}
	return v
}

// merge returns base with what patch changes (RFC 7386).
func merge(base, patch *value) *value {
	if base == nil || base.fields == nil || patch.fields == nil {
		base = &value{Node: patch.Node, file: patch.file}
		if patch.fields == nil {
			return patch
		}
	}
	out := &value{Node: patch.Node, file: patch.file, fields: map[string]*value{}}
	for _, name := range base.order {
		out.set(name, base.fields[name])
	}
	for _, name := range patch.order {
		if v := patch.fields[name]; v.Kind == document.Null {
			out.remove(name)
		} else {
			out.set(name, merge(out.fields[name], v))
		}
	}
	return out
}

func (v *value) set(name string, to *value) {
	if v.fields[name] == nil {
		v.order = append(v.order, name)
	}
	v.fields[name] = to
}

func (v *value) remove(name string) {
	delete(v.fields, name)
	v.order = slices.DeleteFunc(v.order, func(n string) bool { return n == name })
}
