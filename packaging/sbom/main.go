// Command sbom writes a CycloneDX bill of materials to standard output: the Go modules that
// programs were built from, as the programs themselves say.
//
// Usage: sbom NAME VERSION PROGRAM…
package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// bill is a document of CycloneDX 1.5 (https://cyclonedx.org/docs/1.5/json/). It has no serial
// number and no time, so that the same programs give the same bytes.
type bill struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

// property is used for what CycloneDX has no field for: which program has a module, and the
// module's checksum in go.sum.
type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: sbom NAME VERSION PROGRAM…")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(name, version string, programs []string) error {
	modules := map[string]component{}
	add := func(path, version, sum, program string) {
		purl := "pkg:golang/" + path + "@" + version
		c, ok := modules[purl]
		if !ok {
			c = component{Type: "library", Name: path, Version: version, PURL: purl}
			if sum != "" {
				c.Properties = append(c.Properties, property{"go:sum", sum})
			}
		}
		c.Properties = append(c.Properties, property{"program", program})
		modules[purl] = c
	}
	for _, path := range slices.Sorted(slices.Values(programs)) {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		program := filepath.Base(path)
		add("std", info.GoVersion, "", program)
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			add(m.Path, m.Version, m.Sum, program)
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(bill{
		Format: "CycloneDX", Spec: "1.5", Version: 1,
		Metadata: metadata{component{Type: "application", Name: name, Version: version}},
		Components: slices.SortedFunc(maps.Values(modules), func(a, b component) int {
			return cmp.Compare(a.PURL, b.PURL)
		}),
	})
}
