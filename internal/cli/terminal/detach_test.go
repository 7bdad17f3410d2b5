package terminal

import (
	"bytes"
	"testing"
)

func TestDetach(t *testing.T) {
	t.Parallel()
	const p, q = "\x10", "\x11"
	for name, c := range map[string]struct {
		typed []string // by read
		pass  string
		leave bool
	}{
		"nothing":            {nil, "", false},
		"text":               {[]string{"ls\n", "\x03\x04"}, "ls\n\x03\x04", false},
		"leave":              {[]string{p + q}, "", true},
		"leave in two reads": {[]string{p, q}, "", true},
		"after text":         {[]string{"abc" + p + q}, "abc", true},
		"rest is dropped":    {[]string{"a" + p + q + "rm -rf\n"}, "a", true},
		"p alone":            {[]string{"a" + p + "b"}, "a" + p + "b", false},
		"p held back":        {[]string{"a" + p}, "a", false},
		"p then text":        {[]string{p, "b"}, p + "b", false},
		"two p, then q":      {[]string{p + p + q}, p, true},
		"p p held":           {[]string{p, p, p, "x"}, p + p + p + "x", false},
		"q alone":            {[]string{q, "a" + q}, q + "a" + q, false},
		"q then p":           {[]string{q + p, "x" + q}, q + p + "x" + q, false},
	} {
		var d Detach
		var pass []byte
		leave := false
		for _, typed := range c.typed {
			in := []byte(typed)
			got, left := d.Filter(in)
			pass = append(pass, got...)
			if string(in) != typed {
				t.Errorf("%s: the typed keys were changed", name)
			}
			if leave = left; leave {
				break
			}
		}
		if string(pass) != c.pass || leave != c.leave {
			t.Errorf("%s: passed %q, leave %v; want %q, %v", name, pass, leave, c.pass, c.leave)
		}
	}
}

// The result does not depend on how the keys are split over reads.
func FuzzDetach(f *testing.F) {
	f.Add([]byte("a\x10b\x10\x10\x11c"), 2)
	f.Fuzz(func(t *testing.T, typed []byte, split int) {
		var whole, parts Detach
		want, leave := whole.Filter(bytes.Clone(typed))
		at := min(max(split, 0), len(typed))
		got, left := parts.Filter(bytes.Clone(typed[:at]))
		got = bytes.Clone(got)
		if !left {
			var more []byte
			more, left = parts.Filter(bytes.Clone(typed[at:]))
			got = append(got, more...)
		}
		if left != leave || !bytes.Equal(got, want) {
			t.Errorf("%q at %d: %q %v, want %q %v", typed, at, got, left, want, leave)
		}
	})
}
