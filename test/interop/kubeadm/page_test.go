package kubeadm

import (
	"os"
	"strings"
	"testing"
)

// page is docs/kubeadm.md by its headings.
type page map[string]section

// section is what is below one heading.
type section struct {
	files    []file
	commands []string // blocks of the shell
}

type file struct{ path, content string }

// readPage reads the code blocks of the page. A block whose first line is a comment with a path is
// a file.
func readPage(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile("../../../docs/kubeadm.md")
	if err != nil {
		t.Fatal(err)
	}
	p := page{}
	var heading, language string
	var block []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case language == "" && strings.HasPrefix(line, "#"):
			heading = strings.TrimLeft(line, "# ")
		case language == "" && strings.HasPrefix(line, "```"):
			language, block = line[3:], nil
		case line == "```":
			s := p[heading]
			switch {
			case language == "sh":
				s.commands = append(s.commands, strings.Join(block, "\n"))
			case strings.HasPrefix(block[0], "# /"):
				s.files = append(s.files, file{block[0][2:], strings.Join(block[1:], "\n") + "\n"})
			}
			p[heading], language = s, ""
		case language != "":
			block = append(block, line)
		}
	}
	return p
}

func (p page) section(t *testing.T, heading string) section {
	t.Helper()
	s, ok := p[heading]
	if !ok {
		t.Fatalf("docs/kubeadm.md has no commands below %q", heading)
	}
	return s
}
