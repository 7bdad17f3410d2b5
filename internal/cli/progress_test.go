package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// draw replays what the terminal received, at its size then.
func draw(out string, width, height int) *screen {
	s := &screen{width: width, height: height}
	s.write([]byte(out))
	return s
}

// frames counts how often a region was drawn.
func frames(out string) int { return strings.Count(out, "\x1b[J") }

func TestPullOnTerminal(t *testing.T) {
	t.Parallel()
	h, env := serve(t)
	h.SetPace(80 * time.Millisecond) // about 26 steps
	p := newPTY(t, 100, 30)
	p.start(env, "husk", "image", "pull", "localhost/web:latest")
	bar := regexp.MustCompile(`(?m)^  [0-9a-f]{12}  downloading  ━+·*  +[0-9.]+[MkB]+ / 27\.0MB +[0-9.]+MB/s +[0-9]+s left$`)
	p.until("bar with speed and time", func() bool { return bar.MatchString(draw(p.output(), 100, 30).String()) })
	now := draw(p.output(), 100, 30).String()
	if n := strings.Count(now, "\n") + 1; n > 4 {
		t.Errorf("the region is not redrawn in place: %d lines:\n%s", n, now)
	}
	code, out := p.end()
	if frames(out) < 5 {
		t.Errorf("only %d frames: %q", frames(out), out)
	}
	// Only the result remains.
	final := draw(out, 100, 30).String()
	if code != 0 || !regexp.MustCompile(`^pulled localhost/web:latest [0-9a-f]{12} 30\.1MB$`).MatchString(final) {
		t.Errorf("exit code %d, on the screen:\n%s", code, final)
	}
}

// The bars follow the size of the window: no line wraps.
func TestPullResized(t *testing.T) {
	t.Parallel()
	h, env := serve(t)
	h.SetPace(40 * time.Millisecond)
	p := newPTY(t, 120, 30)
	p.start(env, "husk", "image", "pull", "localhost/web:latest")
	p.until("wide bars", func() bool { return frames(p.output()) > 3 })
	p.resize(50, 10)
	before := len(p.output())
	p.until("narrow bars", func() bool { return frames(p.output()[before:]) > 3 })
	narrow := p.output()[before:]
	_, narrow, _ = strings.Cut(narrow, "\x1b[J") // one frame may still be wide
	for line := range strings.Lines(draw(narrow, 1000, 10).String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n >= 50 {
			t.Errorf("a line of %d characters in a window of 50: %q", n, line)
		}
	}
	p.resize(12, 3)
	if code, out := p.end(); code != 0 {
		t.Errorf("exit code %d: %q", code, out)
	}
}

func TestRunOnTerminal(t *testing.T) {
	t.Parallel()
	h, env := serve(t)
	h.SetPace(20 * time.Millisecond)
	dir := t.TempDir()
	var files []string
	for name, image := range map[string]string{"web": "localhost/web:latest", "db": "localhost/db:1"} {
		file := filepath.Join(dir, name)
		text := "{kind: Pod, metadata: {name: " + name + "}, spec: {containers: [{name: app, image: " + image + "}]}}"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p := newPTY(t, 110, 30)
	p.start(env, "husk", append([]string{"run", "--wait"}, files...)...)
	live := regexp.MustCompile(`(?m)^default/web +pulling localhost/web:latest  [0-9]s\n  localhost/web:latest  downloading  ━*·* `)
	p.until("a line and a bar for the pod", func() bool { return live.MatchString(draw(p.output(), 110, 30).String()) })
	code, out := p.end()
	final := draw(out, 110, 30).String()
	want := regexp.MustCompile(`^pod default/(web|db) ready at 10\.1\.2\.[0-9] in [0-9.]+ m?s\npod default/(web|db) ready at 10\.1\.2\.[0-9] in [0-9.]+ m?s$`)
	if code != 0 || !want.MatchString(final) {
		t.Errorf("exit code %d, on the screen:\n%s", code, final)
	}
}

func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	_, env := serve(t)
	file := filepath.Join(t.TempDir(), "never")
	if err := os.WriteFile(file, []byte("{kind: Pod, metadata: {name: never}, spec: {containers: [{name: app, image: none}]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPTY(t, 80, 24)
	p.start(env, "husk", "run", "--wait", file)
	p.expect("can't pull none")
	p.typeKeys("\x03")
	code, out := p.end()
	if final := draw(out, 80, 24).String(); code != 130 || !strings.HasSuffix(final, "interrupted: the pods keep running, see husk ps -a") {
		t.Errorf("exit code %d, on the screen:\n%s", code, final)
	}
}

// Input on a terminal may never end, but ctrl-c interrupts it.
func TestRunReadsTerminal(t *testing.T) {
	t.Parallel()
	_, env := serve(t)
	t.Run("to its end", func(t *testing.T) {
		p := newPTY(t, 80, 24)
		p.start(env, "husk", "run", "-")
		p.typeKeys("{kind: Pod, metadata: {name: typed}, spec: {containers: [{name: app, image: localhost/db:1}]}}\n\x04")
		if code, out := p.end(); code != 0 || !strings.Contains(out, "pod default/typed admitted") {
			t.Errorf("exit code %d: %q", code, out)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		p := newPTY(t, 80, 24)
		p.start(env, "husk", "run", "-")
		p.until("read of the terminal", p.isRead)
		began := time.Now()
		p.typeKeys("\x03")
		if code, _ := p.end(); code != 130 || time.Since(began) > exitTimeout {
			t.Errorf("exit code %d after %s", code, time.Since(began))
		}
	})
}

func TestLoadOnTerminal(t *testing.T) {
	t.Parallel()
	h, env := serve(t)
	h.SetPace(30 * time.Millisecond)
	file := filepath.Join(t.TempDir(), "web.tar")
	if err := writeArchive(file, "localhost/loaded:1", 3_000_000); err != nil {
		t.Fatal(err)
	}
	p := newPTY(t, 100, 30)
	p.start(env, "husk", "image", "load", file)
	p.expect("unpacking")
	code, out := p.end()
	if final := draw(out, 100, 30).String(); code != 0 || !strings.HasPrefix(final, "loaded localhost/loaded:1 ") {
		t.Errorf("exit code %d, on the screen:\n%s", code, final)
	}
	p = newPTY(t, 80, 24)
	p.start(env, "husk", "image", "load")
	if code, out := p.end(); code != exitUsage || !strings.Contains(out, "name its FILE, or pipe it in") {
		t.Errorf("exit code %d: %q", code, out)
	}
}

// Colour is used only on terminals that want it.
func TestColour(t *testing.T) {
	t.Parallel()
	_, env := serve(t, web("cat", false))
	for name, c := range map[string]struct {
		env    []string
		colour bool
	}{
		"wanted":   {nil, true},
		"NO_COLOR": {[]string{"NO_COLOR=1"}, false},
		"dumb":     {[]string{"TERM=dumb"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPTY(t, 80, 24)
			p.start(append(env, c.env...), "husk", "ps")
			_, out := p.end()
			if got := strings.Contains(out, "\x1b[32mRunning\x1b[0m"); got != c.colour || strings.Contains(out, "\x1b") != c.colour {
				t.Errorf("colour is %v: %q", got, out)
			}
			p = newPTY(t, 80, 24)
			p.start(append(env, c.env...), "husk", "image", "pull", "localhost/db:1")
			_, out = p.end()
			if strings.Contains(out, "\x1b") && !c.colour {
				t.Errorf("escape sequences on a terminal without colour: %q", out)
			}
		})
	}
}
