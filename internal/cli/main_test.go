package cli

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/cli/terminal"
)

// TestMain lets the test binary run as husk too: tests start it as a separate process on real pipes
// and terminals.
func TestMain(m *testing.M) {
	testscript.Main(leakCheck{m}, map[string]func(){
		"husk": func() { os.Exit(Main(os.Args[1:])) },
		// A panic while the terminal is in raw mode.
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

// leakCheck fails a run that leaves goroutines behind.
type leakCheck struct{ m *testing.M }

func (l leakCheck) Run() int {
	// A program with the race detector waits a second before it exits, and husk is started about a
	// hundred times.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// nohup ignores SIGHUP, and a shell ignores SIGINT and SIGQUIT in the background. Programs that
	// the tests start inherit that, but have signals with a handler at their default.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	code := l.m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}
