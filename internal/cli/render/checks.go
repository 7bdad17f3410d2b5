package render

import huskv1 "github.com/huskd/husk/api/v1"

// marks are what is seen at a glance, by level.
var marks = map[string]Cell{
	"ok":   {Text: "ok", Style: Good},
	"note": {Text: "note", Style: Faint},
	"warn": {Text: "WARN", Style: Soon},
	"fail": {Text: "FAIL", Style: Bad},
}

// CheckTable has a row for each check and below it, what to do.
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
