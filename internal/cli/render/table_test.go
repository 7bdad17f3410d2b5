package render

import (
	"errors"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()
	table := NewTable("NAME", "STATUS", "NOTE")
	table.Row("web", Cell{"Running", Good}, "")
	table.Row("a-longer-name", "No", "x")
	table.Row("größe", Cell{"Bad\nthing", Bad}, "")
	var plain, colour strings.Builder
	if err := errors.Join(table.Write(&plain, false), table.Write(&colour, true)); err != nil {
		t.Fatal(err)
	}
	want := `NAME            STATUS       NOTE
web             Running
a-longer-name   No           x
größe           Bad\nthing
`
	if plain.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", &plain, want)
	}
	if got := strings.NewReplacer("\x1b[32m", "", "\x1b[31m", "", "\x1b[0m", "").Replace(colour.String()); got != want {
		t.Errorf("colour changes the table:\n%s", got)
	}
	if !strings.Contains(colour.String(), "web             \x1b[32mRunning\x1b[0m\n") {
		t.Errorf("missing colour: %q", &colour)
	}
}

func TestTableWithoutRows(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := NewTable("NAME").Write(&b, false); err != nil || b.String() != "" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestTableWithoutHeader(t *testing.T) {
	t.Parallel()
	table := NewTable()
	table.Row("husk", "v1")
	table.Row("huskd", "v1")
	var b strings.Builder
	if err := table.Write(&b, false); err != nil || b.String() != "husk    v1\nhuskd   v1\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}
