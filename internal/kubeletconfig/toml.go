package kubeletconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// TOML returns the translation as a file for huskd: the keys with their origins and, in comments,
// what has no counterpart.
func (t *Translation) TOML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Translated from %s.\n", printable(t.Files[0]))
	for _, name := range t.Files[1:] {
		fmt.Fprintf(&b, "# With the drop-in %s.\n", printable(name))
	}
	b.WriteString("\n")
	keys := slices.Sorted(maps.Keys(t.Values))
	for _, key := range keys {
		if _, table := t.Values[key].(map[string]any); !table {
			fmt.Fprintf(&b, "%s = %s # %s\n", key, literal(t.Values[key]), printable(t.Origin[key]))
		}
	}
	for _, key := range keys {
		table, is := t.Values[key].(map[string]any)
		if !is {
			continue
		}
		fmt.Fprintf(&b, "\n[%s] # %s\n", key, printable(t.Origin[key]))
		for _, name := range slices.Sorted(maps.Keys(table)) {
			fmt.Fprintf(&b, "%s = %s\n", bare(name), literal(table[name]))
		}
	}
	list := func(title string, notes []Note) {
		if len(notes) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n# %s\n", title)
		for _, n := range notes {
			fmt.Fprintf(&b, "#   %s\n", n)
		}
	}
	list("huskd doesn't have what these fields ask for:", t.Missing)
	list("These fields need nothing in huskd:", t.Silent)
	return b.String()
}

// literal returns a value in TOML. A JSON string is a TOML string, except for DEL.
func literal(v any) string {
	switch v := v.(type) {
	case string:
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v) // never fails for a string
		return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
	case []any:
		var items []string
		for _, item := range v {
			items = append(items, literal(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case float64:
		text := strconv.FormatFloat(v, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		return text
	}
	return fmt.Sprint(v)
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// bare returns a key, in quotes if it needs them.
func bare(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return literal(key)
}

// Reference returns the reference page of the fields in Markdown.
func Reference() string {
	var b strings.Builder
	b.WriteString("# A kubelet's configuration in huskd\n\nGenerated from `internal/kubeletconfig`. These are all fields of a `KubeletConfiguration` of\n" +
		"`" + apiVersion + "`, and what becomes of each when [`kubelet-config`](config.md) names a file that sets it.\n" +
		"[A node of a cluster](../cluster.md#the-configuration-of-a-kubelet) says how the files are read.\n\n" +
		"- A **key** is that of `huskd.toml` which the field sets.\n" +
		"- A field is **silent** if nobody misses what it sets.\n" +
		"- It is **named**, by a warning in the log and in `husk kubelet-config`, if huskd doesn't have what it asks for.\n" +
		"- It is **refused**, and huskd doesn't start, if huskd would leave open what it closes, or would not be the program\n  that it asks for.\n\n" +
		"| field | what becomes of it | why, and what to do |\n|---|---|---|\n")
	for _, f := range fieldList {
		if f.fate == inner {
			continue
		}
		fate := "`" + f.key + "`"
		switch f.fate {
		case silent:
			fate = "silent"
		case missing:
			fate = "named" + f.unlessFits()
		case refused:
			fate = "refused" + f.unlessFits()
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.path, fate, f.why)
	}
	return b.String()
}

func (f field) unlessFits() string {
	if len(f.fits) == 0 {
		return ""
	}
	return " unless `" + f.fits[0] + "`"
}
