package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// margin indents the output of programs.
const margin = "  "

func title(text string) { fmt.Printf("\n%s\n", bold(text)) }

func say(format string, args ...any) { fmt.Printf(margin+format+"\n", args...) }

// command prints a command line as a person would type it.
func command(args []string) { say("$ %s", strings.Join(args, " ")) }

func bold(text string) string {
	if info, err := os.Stdout.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1000) }

// husk runs husk and shows its output. It runs in a new session, so that ^C in the terminal reaches
// only the demo, which ends it through ctx.
func (d *demo) husk(ctx context.Context, args ...string) error {
	command(append([]string{"husk"}, args...))
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "husk"), args...)
	cmd.Env = append(os.Environ(), "HUSK_SOCKET="+d.socket())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out := &indented{to: os.Stdout, fresh: true}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("husk %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// indented indents each line.
type indented struct {
	to    io.Writer
	fresh bool // at the start of a line
}

func (w *indented) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if w.fresh {
			_, _ = io.WriteString(w.to, margin)
		}
		_, _ = w.to.Write(line)
		w.fresh = bytes.HasSuffix(line, []byte("\n"))
	}
	return len(p), nil
}

// showNetwork shows the part of husk inspect about the network.
func (d *demo) showNetwork(ctx context.Context) error {
	answer, err := d.client.Inspect(ctx, &huskv1.InspectRequest{Name: name})
	if err != nil {
		return err
	}
	var document struct{ NetworkSettings json.RawMessage }
	if err := json.Unmarshal(answer.Json, &document); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, document.NetworkSettings, margin, "  "); err != nil {
		return err
	}
	command([]string{"husk", "inspect", name, "| jq .NetworkSettings"})
	say("%s", text.String())
	return nil
}

func (d *demo) printNextSteps() {
	title("huskd and the pod keep running")
	husk := filepath.Join(d.bin, "husk")
	say("export HUSK_SOCKET=%s", d.socket())
	say("%s ps                   # list the pods", husk)
	say("curl http://%s/     # send a request to the pod", d.address)
	say("%s shutdown && rm -r %s   # stop everything", husk, d.dir)
}
