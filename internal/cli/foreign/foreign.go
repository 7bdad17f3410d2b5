// Package foreign answers the commands of docker, podman, kubectl, crictl and ctr that Husk doesn't
// have: each has Husk's command for the same purpose, or says why there is none. It also holds the
// everyday command lines of these tools, from which the reference page is generated.
package foreign

import (
	"maps"
	"slices"
	"strings"
)

// Answer is what to say to a command of another tool.
type Answer struct {
	// Typed is the command, such as "docker rmi".
	Typed string
	// Husk is Husk's command for the same purpose; empty if there is none.
	Husk string
	// Why says why there is none, or what to know about it. It may be empty.
	Why string
}

// String is the answer in one line.
func (a Answer) String() string {
	_, word, _ := strings.Cut(a.Typed, " ")
	text := "husk has no command \"" + word + "\": "
	switch {
	case a.Husk == "":
		return text + a.Why
	case a.Why == "":
		return text + "for " + a.Typed + ", use " + a.Husk
	}
	return text + "for " + a.Typed + ", use " + a.Husk + "; " + a.Why
}

// Lookup returns the answer to a command line that begins with these words. The longest command
// that they begin with decides, if it has more than known words, which Husk has.
func Lookup(words []string, known int) (Answer, bool) {
	for n := min(len(words), longest); n > known; n-- {
		if a, ok := answers[strings.Join(words[:n], " ")]; ok {
			return a, true
		}
	}
	return Answer{}, false
}

// Answers returns all answers by their commands.
func Answers() map[string]Answer { return maps.Clone(answers) }

// valued are flags before a command that take a value, as other tools have them.
var valued = []string{"--socket", "-n", "--namespace", "--context", "--kubeconfig", "-H", "--host", "--log-level", "-r", "--runtime-endpoint", "-a", "--address", "--root"}

// Words returns the words of a command line, without its flags and without what follows "--".
func Words(args []string) []string {
	var words []string
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--":
			return words
		case !strings.HasPrefix(arg, "-"):
			words = append(words, arg)
		case len(words) == 0 && slices.Contains(valued, arg):
			i++
		}
	}
	return words
}
