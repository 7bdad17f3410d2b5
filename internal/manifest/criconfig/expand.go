package criconfig

import "strings"

// expand replaces each $(NAME) in text by the variable's value. References to unknown variables
// stay as they are. $$ becomes $, and a $ before any other character stays. Values aren't expanded
// again.
func expand(text string, lookup func(name string) (string, bool)) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch text[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(text[i:], ')')
			if end < 0 {
				out.WriteString(text[i:])
				return out.String()
			}
			reference := text[i : i+end+1]
			if value, ok := lookup(reference[2:end]); ok {
				reference = value
			}
			out.WriteString(reference)
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}
