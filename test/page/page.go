// Package page reads the documents whose commands tests run.
package page

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Page is a document by its headings.
type Page struct {
	t        testing.TB
	path     string
	sections map[string]Section
}

// Section is what is below one heading.
type Section struct {
	Files    []File
	Commands []string // blocks of the shell
}

// File is a file that the document tells its reader to write.
type File struct{ Path, Content string }

// named matches a line that names the file of the block below it.
var named = regexp.MustCompile("`(/[^`]+)`:$")

// Read reads the code blocks of a document. A block is a file if its first line is a comment with a
// path, or if the line above it ends with a path and a colon.
func Read(t testing.TB, path string) *Page {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := &Page{t: t, path: path, sections: map[string]Section{}}
	var heading, language, above string
	var block []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case language == "" && strings.HasPrefix(line, "#"):
			heading = strings.TrimLeft(line, "# ")
		case language == "" && strings.HasPrefix(line, "```"):
			language, block = line[3:], nil
		case line == "```":
			s := p.sections[heading]
			switch {
			case language == "sh":
				s.Commands = append(s.Commands, strings.Join(block, "\n"))
			case len(block) == 0:
			case strings.HasPrefix(block[0], "# /"):
				s.Files = append(s.Files, File{block[0][2:], strings.Join(block[1:], "\n") + "\n"})
			default:
				if m := named.FindStringSubmatch(above); m != nil {
					s.Files = append(s.Files, File{m[1], strings.Join(block, "\n") + "\n"})
				}
			}
			p.sections[heading], language, above = s, "", ""
		case language != "":
			block = append(block, line)
		case line != "":
			above = line
		}
	}
	return p
}

// Section returns what is below a heading. The test fails if there is no file and no command.
func (p *Page) Section(heading string) Section {
	p.t.Helper()
	s, ok := p.sections[heading]
	if !ok {
		p.t.Fatalf("%s has no commands below %q", p.path, heading)
	}
	return s
}
