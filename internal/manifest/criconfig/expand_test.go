package criconfig

import "testing"

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "1", "B": "$(A)", "E": "", "a b": "spaced"}
	for text, want := range map[string]string{
		"":                "",
		"plain":           "plain",
		"$(A)":            "1",
		"x$(A)y$(A)z":     "x1y1z",
		"$(B)":            "$(A)", // not expanded again
		"$(E)":            "",
		"$(NONE)":         "$(NONE)",
		"$$(A)":           "$(A)",
		"$$$(A)":          "$1",
		"$$$$(A)":         "$$(A)",
		"$":               "$",
		"a$":              "a$",
		"$A":              "$A",
		"$(A":             "$(A",
		"$()":             "$()",
		"$(a b)":          "spaced",
		"$($(A))":         "$($(A))",
		"$(A)$":           "1$",
		"50$% of $(A)":    "50$% of 1",
		"$(NONE)$(A)":     "$(NONE)1",
		"$${A}$(A)$$(A)$": "${A}1$(A)$",
	} {
		got := expand(text, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
