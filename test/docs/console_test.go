package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/huskd/husk/test/node"
)

// step is a command in a document and its documented output.
type step struct {
	line   int
	run    string
	prints []string
}

// steps returns the commands of a document's console blocks. A line "$ COMMAND" starts a step; the
// lines after it are its output.
func steps(document string) (list []step) {
	inside := false
	for i, line := range strings.Split(document, "\n") {
		switch {
		case line == "```console":
			inside = true
		case strings.HasPrefix(line, "```"):
			inside = false
		case !inside:
		case strings.HasPrefix(line, "$ "):
			list = append(list, step{line: i + 1, run: line[2:]})
		case len(list) > 0:
			last := &list[len(list)-1]
			last.prints = append(last.prints, line)
		}
	}
	return list
}

// startsHuskd reports whether the command starts a huskd in the background.
func (s step) startsHuskd() bool {
	return strings.HasPrefix(s.run, "huskd ") && strings.HasSuffix(s.run, "&")
}

// TestConsole runs the documents' commands, each document on a node of its own, and compares the
// output. Numbers and the names of a Deployment's pods may differ, runs of spaces count as one, a
// line "…" matches any lines, and "…" inside of a line any text. For a document that doesn't start
// huskd, huskd runs already, with the examples' image. Such a document may leave the pod of
// examples/web.yaml running, and nothing else.
func TestConsole(t *testing.T) {
	t.Parallel()
	for _, file := range files(t, ".md") {
		list := steps(read(t, file))
		if len(list) == 0 || file == debugging || file == edge {
			continue
		}
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			n := node.New(t)
			dir := workplace(t, n)
			var d *node.Daemon
			if !slices.ContainsFunc(list, step.startsHuskd) {
				d = n.Huskd()
				n.MustHusk("image", "load", filepath.Join(dir, "web.tar"))
			}
			out := n.Run("sh", "-c", "cd "+dir+" && exec timeout 100 sh "+script(t, n, list)+" 2>&1").Stdout
			switch {
			case d != nil:
				_ = n.Husk("rm", "-f", "web")
				d.Stop()
			case n.Serves():
				t.Errorf("%s leaves huskd running", file)
			}
			compare(t, file, list, out)
		})
	}
}

// workplace creates a directory that looks like the top of the repository, with the programs in
// bin. Its huskd uses the node's own directories.
func workplace(t *testing.T, n *node.Node) string {
	t.Helper()
	dir := filepath.Join(n.Dir, "husk")
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs(filepath.Join(top, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	huskd := fmt.Sprintf("#!/bin/sh\nexec %s --config /dev/null --cni-conf-dir= --root %s \"$@\"\n", n.Binary("huskd"), n.Root)
	if err := os.WriteFile(filepath.Join(dir, "bin/huskd"), []byte(huskd), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"examples": examples, "bin/husk": n.Binary("husk")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	saveArchive(t, filepath.Join(dir, "web.tar"))
	return dir
}

// mark is printed after the output of a command, with its exit code.
const mark = "\x01"

// script writes the commands as one script and returns its path. The script waits until a huskd
// that it starts serves, because a person types slowly enough.
func script(t *testing.T, n *node.Node, list []step) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("PATH=$PWD/bin:$PATH\n")
	for _, s := range list {
		fmt.Fprintf(&b, "%s\nprintf '\\001%%d\\001' $?\n", s.run)
		if s.startsHuskd() {
			b.WriteString("for i in $(seq 300); do husk version >/dev/null 2>&1 && break; sleep 0.05; done\n")
		}
	}
	path := filepath.Join(n.Dir, "script")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func compare(t *testing.T, file string, list []step, out string) {
	t.Helper()
	for _, s := range list {
		printed, rest, _ := strings.Cut(out, mark)
		code, rest, ended := strings.Cut(rest, mark)
		out = rest
		switch n, err := strconv.Atoi(code); {
		case !ended || err != nil:
			t.Fatalf("%s:%d: %s: not reached; before it:\n%s", file, s.line, s.run, printed)
		case n != 0:
			t.Errorf("%s:%d: %s: exit code %d:\n%s", file, s.line, s.run, n, printed)
		case !matches(s.prints, strings.Split(strings.TrimRight(printed, "\n"), "\n")):
			t.Errorf("%s:%d: %s prints\n%s\nand not\n%s", file, s.line, s.run, printed, strings.Join(s.prints, "\n"))
		}
	}
}

// matches reports whether printed matches want. An empty want matches only nothing.
func matches(want, printed []string) bool {
	switch {
	case len(want) == 0:
		return len(printed) == 0 || len(printed) == 1 && printed[0] == ""
	case want[0] == "…":
		for i := range len(printed) + 1 {
			if matches(want[1:], printed[i:]) {
				return true
			}
		}
		return false
	}
	return len(printed) > 0 && matchesLine(plain(want[0]), plain(printed[0])) && matches(want[1:], printed[1:])
}

// matchesLine reports whether a line is as wanted, where "…" stands for any text.
func matchesLine(want, printed string) bool {
	begin, rest, more := strings.Cut(want, "…")
	if !more {
		return want == printed
	}
	printed, ok := strings.CutPrefix(printed, begin)
	for i := 0; ok && i <= len(printed); i++ {
		if matchesLine(rest, printed[i:]) {
			return true
		}
	}
	return false
}

var (
	// pods matches what the name of a Deployment's pod ends in.
	pods    = regexp.MustCompile(`-[0-9b-df-hj-np-tv-xz]{6,10}-[24-9b-df-hj-np-tv-xz]{5}\b`)
	hexes   = regexp.MustCompile(`\b[0-9a-f]{12,}\b`)
	times   = regexp.MustCompile(`[0-9]+(\.[0-9]+)? ?(ns|µs|ms|s|m)\b`)
	numbers = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
)

// plain returns a line without the parts that vary between runs.
func plain(line string) string {
	line = pods.ReplaceAllString(line, "-HASH-ID")
	line = strings.ReplaceAll(line, "ErrImagePull", "ImagePullBackOff") // they alternate
	line = times.ReplaceAllString(hexes.ReplaceAllString(line, "ID"), "0 s")
	line = numbers.ReplaceAllString(line, "0")
	return strings.Join(strings.Fields(line), " ")
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		want, printed string
		ok            bool
	}{
		{"web  2/2  10.1.2.3", "web 1/1 10.201.0.2", true},
		{"web-5d6f7c8b9-x2lhb 10.1.2.3", "web-584b6b45f6-mswh5 10.201.0.2", true},
		{"loaded 2c4cd0bafa52 1.5MB", "loaded f07059e60954 2MB", true},
		{"a\n…\nz", "a\nb\nc\nz", true},
		{"…\nz", "z", true},
		{"…", "", true},
		{"by … and …, MTU 1", "by eth0 and hk123, MTU 1500", true},
		{"by …, MTU", "by eth0, MTU 1500", false},
		{"web", "db", false},
		{"a\nz", "a\nb\nz", false},
		{"a", "a\nb", false},
	} {
		if got := matches(strings.Split(c.want, "\n"), strings.Split(c.printed, "\n")); got != c.ok {
			t.Errorf("%q for %q: %v", c.printed, c.want, got)
		}
	}
}
