package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/lifecycle"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// life is a lifecycle table with the descriptions of its states, events and actions.
type life struct {
	title  string
	states []word
	events []word
	deeds  []word
	rows   []row
}

type row struct{ from, on, to, deed string }

// word is a constant and its comment.
type word struct{ name, meaning string }

func lifecycles(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# Lifecycles

Generated from the tables of ` + "`internal/sandbox/sandboxstate` and `internal/container/containerstate`" + `. They are all that
moves a sandbox or a container from one state to the next.

A state is recorded in the journal before its action begins, and named for what may exist while it is recorded:
so a record tells after a crash anywhere what there may be to undo. Every action can be repeated. The pictures
leave out what ends where it began, and what happens when huskd (` + "`lost`) or the host (`reboot`" + `) is restarted;
the tables have it all.
`)
	sandboxes := words(t, "sandbox")
	sandboxes.title = "A sandbox"
	sandboxes.rows = rowsOf(&sandboxstate.Table, sandboxes)
	containers := words(t, "container")
	containers.title = "A container"
	containers.rows = rowsOf(&containerstate.Table, containers)
	sandboxes.write(&b)
	b.WriteString(`
### Attached after the start

With ` + "`network: after-start`" + `, see [CNI networks](cni.md), a sandbox has an infra process in any case, and it is
there before the network is. This is what is different; all else is as above.

`)
	late := rowsOf(&sandboxstate.Late, sandboxes)
	sandboxes.states = slices.DeleteFunc(sandboxes.states, func(s word) bool {
		return slices.Equal(rowsIn(s.name, late), rowsIn(s.name, sandboxes.rows))
	})
	sandboxes.rows = late
	sandboxes.table(&b)
	containers.write(&b)
	return b.String()
}

// rowsOf returns a table's rows in the order in which its states are declared.
func rowsOf[S lifecycle.State](t *lifecycle.Table[S], l life) (rows []row) {
	for _, from := range l.states {
		for _, on := range l.events {
			if to, do, ok := t.Next(S(from.name), lifecycle.Event(on.name)); ok {
				rows = append(rows, row{from.name, on.name, string(to), string(do)})
			}
		}
	}
	return rows
}

// rowsIn returns the rows of one state.
func rowsIn(state string, rows []row) []row {
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.from != state })
}

// words reads the constants of a lifecycle package with their comments.
func words(t *testing.T, owner string) life {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, "internal", owner, owner+"state", "lifecycle.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var l life
	lists := map[string]*[]word{"State": &l.states, "Event": &l.events, "Action": &l.deeds}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		typ, _ := spec.Type.(*ast.Ident)
		value, _ := spec.Values[0].(*ast.BasicLit)
		if typ == nil || value == nil || lists[typ.Name] == nil {
			return true
		}
		if name, _ := strconv.Unquote(value.Value); name != "" {
			*lists[typ.Name] = append(*lists[typ.Name], word{name, strings.TrimSpace(spec.Comment.Text())})
		}
		return true
	})
	return l
}

func (l life) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n```mermaid\nstateDiagram-v2\n", l.title)
	for _, e := range edges(l.rows, "lost", "reboot") {
		fmt.Fprintf(b, "    %s --> %s: %s\n", e.from, e.to, e.on)
	}
	b.WriteString("```\n\n| state | while it is recorded | action | that is to |\n|---|---|---|---|\n")
	for _, s := range l.states {
		deed := l.deedOf(s.name)
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", s.name, s.meaning, deed.name, deed.meaning)
	}
	b.WriteString("\n| event | what happened |\n|---|---|\n")
	for _, e := range l.events {
		fmt.Fprintf(b, "| %s | %s |\n", e.name, e.meaning)
	}
	b.WriteString("\nWhat follows in which state; an event without an entry can't happen there.\n\n")
	l.table(b)
}

// table renders the transitions of each state.
func (l life) table(b *strings.Builder) {
	b.WriteString("|  |")
	for _, e := range l.events {
		b.WriteString(" " + e.name + " |")
	}
	b.WriteString("\n" + strings.Repeat("|---", len(l.events)+1) + "|\n")
	for _, s := range l.states {
		if !slices.ContainsFunc(l.rows, func(r row) bool { return r.from == s.name }) {
			continue
		}
		fmt.Fprintf(b, "| **%s** |", s.name)
		for _, e := range l.events {
			i := slices.IndexFunc(l.rows, func(r row) bool { return r.from == s.name && r.on == e.name })
			if i < 0 {
				b.WriteString("  |")
				continue
			}
			b.WriteString(" " + l.rows[i].to + " |")
		}
		b.WriteString("\n")
	}
}

// deedOf returns the action on entering a state.
func (l life) deedOf(state string) word {
	for _, r := range l.rows {
		if r.to != state {
			continue
		}
		if i := slices.IndexFunc(l.deeds, func(w word) bool { return w.name == r.deed }); i >= 0 {
			return l.deeds[i]
		}
	}
	return word{}
}

// edges joins the rows between the same two states. It leaves out the given events and transitions
// to the same state.
func edges(rows []row, without ...string) []row {
	var out []row
	for _, r := range rows {
		if r.from == r.to || slices.Contains(without, r.on) {
			continue
		}
		if i := slices.IndexFunc(out, func(e row) bool { return e.from == r.from && e.to == r.to }); i >= 0 {
			out[i].on += ", " + r.on
			continue
		}
		out = append(out, r)
	}
	return out
}

// picture draws the life of a sandbox for the README.
func picture(t *testing.T) string {
	var rows []row
	for _, r := range rowsOf(&sandboxstate.Table, words(t, "sandbox")) {
		if r.from == string(sandboxstate.Reserved) && r.on != string(sandboxstate.Run) {
			continue
		}
		if r.on == string(sandboxstate.Done) {
			r.on = ""
		}
		rows = append(rows, r)
	}
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	for _, e := range edges(rows, "lost", "reboot") {
		if e.on == "" {
			fmt.Fprintf(&b, "    %s --> %s\n", e.from, e.to)
			continue
		}
		fmt.Fprintf(&b, "    %s -- %s --> %s\n", e.from, e.on, e.to)
	}
	return b.String()
}
