package vm

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestCollect(t *testing.T) {
	for name, test := range map[string]struct {
		said string
		want []Outcome
	}{
		"nothing":             {"", nil},
		"noise before":        {"SeaBIOS\r\n\r\n", nil},
		"an end of nothing":   {Ended + "a 0\n", nil},
		"one":                 {"\r\n" + Began + "a\r\nhello\r\n" + Ended + "a 0\r\n", []Outcome{{"a", "hello\n", "0"}}},
		"two":                 {Began + "a\n" + Ended + "a 0\n" + Began + "b\nx\ny\n" + Ended + "b 2\n", []Outcome{{"a", "", "0"}, {"b", "x\ny\n", "2"}}},
		"the machine is gone": {Began + "a\nhello\nhal", []Outcome{{"a", "hello\nhal\n", "none"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []string
			got := collect(strings.NewReader(test.said), func(line string) { seen = append(seen, line) })
			if !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
			var lines string
			for _, o := range test.want {
				lines += o.Output
			}
			if strings.Join(append(seen, ""), "\n") != lines {
				t.Errorf("watched %q, want %q", seen, lines)
			}
		})
	}
}

// TestInitrd compares with an archive computed by hand.
func TestInitrd(t *testing.T) {
	root := &Initrd{files: map[string]file{}}
	root.File("/a/b", 0o755, []byte("hello"))
	var out bytes.Buffer
	n, err := root.WriteTo(&out)
	if err != nil || n != int64(out.Len()) {
		t.Fatalf("%d of %d bytes: %v", n, out.Len(), err)
	}
	const zero = "00000000"
	numbers := func(inode, mode, links, size, name string) string {
		return "070701" + inode + mode + zero + zero + links + zero + size + zero + zero + zero + zero + name + zero
	}
	want := numbers("00000001", "000041ED", "00000002", zero, "00000002") + "a\x00" +
		numbers("00000002", "000081ED", "00000001", "00000005", "00000004") + "a/b\x00\x00\x00" + "hello\x00\x00\x00" +
		numbers(zero, zero, "00000001", zero, "0000000B") + "TRAILER!!!\x00\x00\x00\x00"
	if out.String() != want {
		t.Errorf("got\n%q, want\n%q", out.String(), want)
	}
}

func TestInitrdFollowsMergedUsr(t *testing.T) {
	root := NewInitrd()
	root.File("/bin/x", 0o755, nil)
	root.File("/lib64/ld", 0o755, nil)
	root.Link("/sbin/y", "/bin/x")
	for _, name := range []string{"/usr/bin/x", "/usr/lib64/ld", "/usr/sbin/y", "/usr/bin", "/usr"} {
		if _, ok := root.files[name]; !ok {
			t.Errorf("there is no %s", name)
		}
	}
	if err := root.Program("no-such-program"); err == nil || !strings.Contains(err.Error(), "make deps") {
		t.Errorf("a program that isn't there: %v", err)
	}
	if _, err := library("libnone.so.0"); err == nil {
		t.Error("a library that isn't there is found")
	}
}
