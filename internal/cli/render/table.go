// Package render formats values as text for people: tables, ages, sizes, the status of a pod,
// progress bars. It is pure: the caller passes the time, the width of the screen and whether to use
// colour.
package render

import (
	"fmt"
	"io"
	"strings"
)

// Style is the colour of a cell. The zero Style is plain.
type Style string

// The styles, as parameters of the terminal's SGR sequence.
const (
	Plain Style = ""
	Good  Style = "32" // green
	Soon  Style = "33" // yellow
	Bad   Style = "31" // red
	Faint Style = "2"
)

// Paint returns s in the style.
func (st Style) Paint(s string) string {
	if st == Plain || s == "" {
		return s
	}
	return "\x1b[" + string(st) + "m" + s + "\x1b[0m"
}

// Cell is one field of a table.
type Cell struct {
	Text  string
	Style Style
}

// columnGap is the space between columns: as wide as in kubectl, so that a single space inside a
// cell doesn't look like a new column.
const columnGap = 3

// Table aligns rows under a header.
type Table struct {
	header []string
	rows   [][]Cell
}

// NewTable returns a table with the named columns, or without a header. All rows must have the same
// number of cells.
func NewTable(header ...string) *Table { return &Table{header: header} }

// Row adds a row of Cells or plain values. Control characters are escaped, since text may come from
// outside.
func (t *Table) Row(cells ...any) {
	row := make([]Cell, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case Cell:
			row[i] = Cell{Clean(c.Text), c.Style}
		default:
			row[i] = Cell{Text: Clean(fmt.Sprint(c))}
		}
	}
	t.rows = append(t.rows, row)
}

// Write writes the table without trailing spaces. A table without rows is empty, even if it has a
// header.
func (t *Table) Write(w io.Writer, colour bool) error {
	_, err := t.Continue(w, colour, nil)
	return err
}

// Continue writes the rows below those of a former table, whose Continue has returned the widths of
// the columns. Without them, or if the tables have other columns, it writes the header, too.
func (t *Table) Continue(w io.Writer, colour bool, former []int) (widths []int, _ error) {
	if len(t.rows) == 0 {
		return former, nil
	}
	all := t.rows
	if len(t.header) > 0 && len(former) != len(t.header) {
		head := make([]Cell, len(t.header))
		for i, h := range t.header {
			head[i].Text = h
		}
		all = append([][]Cell{head}, all...)
	}
	widths = make([]int, len(all[0]))
	if len(former) == len(widths) {
		copy(widths, former)
	}
	for _, row := range all {
		for i, c := range row {
			widths[i] = max(widths[i], Width(c.Text))
		}
	}
	var b strings.Builder
	for _, row := range all {
		pad := 0 // pending until the next text, so that no line ends in spaces
		for i, c := range row {
			if c.Text != "" {
				b.WriteString(strings.Repeat(" ", pad))
				pad = 0
				if colour {
					b.WriteString(c.Style.Paint(c.Text))
				} else {
					b.WriteString(c.Text)
				}
			}
			pad += widths[i] - Width(c.Text) + columnGap
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return widths, err
}
