package flags

import "testing"

func TestTemplateKeepsIntegers(t *testing.T) {
	const document = `[{"name": "create", "nanoseconds": 991852835, "share": 0.5}]`
	for template, want := range map[Output]string{
		"jsonpath={[*].nanoseconds} {[*].share}":                      "991852835 0.5",
		"jsonpath={[?(@.nanoseconds>1000)].name}":                     "create",
		"custom-columns=NAME:.name,TIME:.nanoseconds,SHARE:{ .share}": "NAME     TIME        SHARE\ncreate   991852835   0.5\n",
	} {
		got, err := template.expand([]byte(document))
		if err != nil || string(got) != want {
			t.Errorf("%s prints %q, %v, want %q", template, got, err, want)
		}
	}
}
