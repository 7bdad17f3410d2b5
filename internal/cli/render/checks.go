package render

import huskv1 "github.com/huskd/husk/api/v1"

// marks are the cells for the levels of checks.
var marks = map[string]Cell{
	"ok":   {Text: "ok", Style: Good},
	"note": {Text: "note", Style: Faint},
	"warn": {Text: "WARN", Style: Soon},
	"fail": {Text: "FAIL", Style: Bad},
}

// CheckTable returns a table with a row for each check, followed by its remedy if any.
func CheckTable(checks []*huskv1.Check) *Table {
	t := NewTable("LEVEL", "CHECK", "FINDING")
	for _, c := range checks {
		mark, known := marks[c.Level]
		if !known {
			mark = Cell{Text: c.Level}
		}
		t.Row(mark, c.Name, c.Finding)
		if c.Remedy != "" {
			t.Row("", "", "-> "+c.Remedy)
		}
	}
	return t
}
