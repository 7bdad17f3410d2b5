package docs

import (
	"regexp"
	"strings"
	"testing"
)

var quoted = regexp.MustCompile("(?m)^### `(.+)`$")

// TestTroubleshootingQuotesTheCode checks that the code contains each message that the page
// explains, apart from the parts that vary.
func TestTroubleshootingQuotesTheCode(t *testing.T) {
	var code strings.Builder
	for _, file := range files(t, ".go") {
		if !strings.HasSuffix(file, "_test.go") {
			code.WriteString(read(t, file))
		}
	}
	all := strings.ReplaceAll(code.String(), `\"`, `"`)
	for _, m := range quoted.FindAllStringSubmatch(read(t, "docs/troubleshooting.md"), -1) {
		for _, words := range strings.Split(m[1], "…") {
			if words = strings.Trim(words, " :,;()"); words != "" && !strings.Contains(all, words) {
				t.Errorf("docs/troubleshooting.md explains %q, of which the code doesn't say %q", m[1], words)
			}
		}
	}
}
