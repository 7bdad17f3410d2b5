package cli

import (
	"strings"
	"testing"

	"github.com/huskd/husk/internal/cli/foreign"
)

// parses returns the error that husk ends with when it can't parse the words, and the command that
// would run.
func parses(args []string) (command string, err error) {
	root := newRoot(&app{})
	cmd, rest, err := root.Find(args)
	if err != nil {
		return "", err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return "", err
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return "", err
	}
	return cmd.CommandPath(), nil
}

// Each everyday line of another tool is taken as it is, or answered with Husk's, which is valid.
func TestEverydayLines(t *testing.T) {
	t.Parallel()
	if n := len(foreign.Lines); n < 120 {
		t.Errorf("only %d lines", n)
	}
	for _, l := range foreign.Lines {
		answer := foreignWord(newRoot(&app{}), l.Args())
		_, typed := parses(l.Args())
		switch {
		case l.Same() && answer != nil:
			t.Errorf("%s is the same in husk, which says: %v", l.Typed, answer)
		case l.Same() && typed != nil:
			t.Errorf("%s should be taken: %v", l.Typed, typed)
		case !l.Same() && answer == nil:
			t.Errorf("%s gets no answer", l.Typed)
		}
		if l.Husk == "" {
			continue
		}
		command, err := parses(strings.Fields(l.Husk)[1:])
		if err != nil {
			t.Errorf("%s: %s: %v", l.Typed, l.Husk, err)
		}
		if !l.Same() && answer != nil && !strings.Contains(answer.Error(), ", use "+command) {
			t.Errorf("%s is %s, but the answer is: %v", l.Typed, command, answer)
		}
	}
}

// Each command that an answer names exists, and none of the answers is for a command of Husk's own.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	root := newRoot(&app{})
	for words, a := range foreign.Answers() {
		if err := foreignWord(root, strings.Fields(words)); err == nil {
			t.Errorf("husk has %q, so its answer is never printed", words)
		}
		if a.Husk == "" {
			continue
		}
		named := foreign.Words(strings.Fields(a.Husk)[1:])
		if cmd, _, err := root.Find(named); err != nil || !cmd.HasParent() {
			t.Errorf("%s: there is no %s", words, a.Husk)
		}
	}
}
