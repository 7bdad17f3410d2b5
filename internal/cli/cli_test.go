package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// every calls do for each command.
func every(do func(*cobra.Command)) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		do(cmd)
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot(&app{}))
}

// Every command's help has one sentence, two to four examples and a usage for each flag.
func TestHelpIsComplete(t *testing.T) {
	t.Parallel()
	every(func(cmd *cobra.Command) {
		name := cmd.CommandPath()
		if strings.Count(cmd.Short, ".") != 1 || !strings.HasSuffix(cmd.Short, ".") || len(cmd.Short) > 80 {
			t.Errorf("%s: %q is not one short sentence", name, cmd.Short)
		}
		if cmd.Long != "" && !strings.HasPrefix(cmd.Long, cmd.Short) {
			t.Errorf("%s: the long help doesn't begin with the short one", name)
		}
		examples := strings.Split(cmd.Example, "\n")
		if n := len(examples); n < 2 || n > 4 {
			t.Errorf("%s: %d examples", name, n)
		}
		for _, e := range examples {
			if !strings.Contains(e, name+" ") && !strings.HasSuffix(e, name) && cmd.Name() != "husk" {
				t.Errorf("%s: the example %q is for another command", name, e)
			}
		}
		if cmd.Args == nil && cmd.Name() != "help" {
			t.Errorf("%s doesn't check its arguments", name)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || len(f.Usage) > 90 || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s --%s: %q", name, f.Name, f.Usage)
			}
		})
		for line := range strings.Lines(cmd.Long) {
			if len(line) > 81 {
				t.Errorf("%s: a line of %d characters: %q", name, len(line), line)
			}
		}
	})
}

// The examples parse: the commands, flags and arguments exist.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	every(func(cmd *cobra.Command) {
		for _, e := range strings.Split(cmd.Example, "\n") {
			_, line, found := strings.Cut(" "+e, " husk ")
			if !found {
				if _, line, found = strings.Cut(e, "(husk "); !found {
					continue
				}
			}
			line, _, _ = strings.Cut(strings.TrimSuffix(line, ")"), " < ")
			line, _, _ = strings.Cut(line, " > ")
			line, _, _ = strings.Cut(line, " | ")
			root := newRoot(&app{})
			about, rest, err := root.Find(strings.Fields(line))
			if err == nil {
				err = about.ParseFlags(rest)
			}
			if err == nil && about.Args != nil {
				err = about.Args(about, about.Flags().Args())
			}
			if err != nil {
				t.Errorf("husk %s: %v", line, err)
			}
		}
	})
}

func TestReference(t *testing.T) {
	t.Parallel()
	text := Reference()
	if text != Reference() {
		t.Error("two calls differ")
	}
	every(func(cmd *cobra.Command) {
		if title := "\n## " + cmd.CommandPath() + "\n"; cmd.HasParent() && cmd.Name() != "help" && strings.Count(text, title) != 1 {
			t.Errorf("no section %q", title)
		}
		if cmd.Name() == "help" {
			return
		}
		for _, want := range []string{cmd.Short, cmd.Example} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing", cmd.CommandPath(), want)
			}
		}
	})
	for _, want := range []string{
		"# The husk command line\n",
		"| `-o`, `--output format` | print as json, yaml |\n",
		"| `--socket string` | huskd's socket; overrides $HUSK_SOCKET (default unix:///run/husk/husk.sock) |\n",
		"| `--budget duration` | time for all pods to stop; what still runs is then killed (default 30s) |\n",
		"| `-c`, `--container NAME` | NAME of the container, if the pod has several |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(text, "__complete") || strings.Contains(text, "--help") && strings.Contains(text, "| `-h`") {
		t.Error("hidden commands or flags are documented")
	}
}

func TestErrorPrinter(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	p := &errorPrinter{w: &b}
	p.add(nil)
	if err := p.result(); err != nil {
		t.Errorf("nothing failed, but the result is %v", err)
	}
	p.add(errors.Join(errors.New("one"), nil, errors.Join(errors.New("two\nlines"), errors.New("one"))))
	p.add(fmt.Errorf("wrapped: %w", errors.New("three\x1b[2J")))
	if want := "husk: one\nhusk: two; lines\nhusk: wrapped: three\\x1b[2J\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	if e, ok := errors.AsType[exit](p.result()); !ok || e.code != exitFailure || e.err != nil {
		t.Errorf("the result is %v", e)
	}
	p.add(fmt.Errorf("stopped: %w", interrupted{syscall.SIGTERM}))
	if why, ok := errors.AsType[interrupted](p.result()); !ok || why.code() != 143 {
		t.Errorf("the result is %v", p.result())
	}
}

// A user without access to the socket gets a helpful error.
func TestPermission(t *testing.T) {
	t.Parallel()
	h, env := serve(t)
	defer h.Close()
	socket := strings.TrimPrefix(env[0], "HUSK_SOCKET=")
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("husk")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "ps")
	if os.Geteuid() == 0 {
		// Root may always connect, so another user runs a husk that it can execute.
		dir := filepath.Dir(socket)
		cmd = exec.Command(filepath.Join(dir, "husk"), "ps")
		if err := errors.Join(os.Chmod(dir, 0o755), os.Link(program, cmd.Path)); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	want := "husk: no permission to use unix://" + socket + ": try sudo husk\n"
	if !strings.HasPrefix(string(out), want) || cmd.ProcessState.ExitCode() != exitFailure {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}
