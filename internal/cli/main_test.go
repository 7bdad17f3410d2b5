package cli

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/cli/terminal"
)

// TestMain makes the test binary husk too: tests run it as a process of its
// own, on real pipes and terminals.
func TestMain(m *testing.M) {
	testscript.Main(leakless{m}, map[string]func(){
		"husk": func() { os.Exit(Main(os.Args[1:])) },
		// What a fault of ours leaves of a terminal in raw mode.
		"husk-panic": func() {
			if err := terminal.Raw(os.Stdin); err != nil {
				panic(err)
			}
			fmt.Println("raw")
			go func() {
				defer terminal.Guard()
				panic("on purpose")
			}()
			time.Sleep(time.Minute)
		},
	})
}

// leakless fails a run that leaves goroutines behind.
type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	// A program with the race detector waits a second before it ends, and
	// husk is started some hundred times.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	code := l.m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}
