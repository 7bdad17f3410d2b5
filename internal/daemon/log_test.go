package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"testing"
	"time"
)

// TestLogBlocked: the log's check fails while nobody reads the log.
func TestLogBlocked(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	output := &logOutput{to: w}
	log := logger("text", slog.LevelInfo, output)
	if log.Info("one line"); output.check(0) != nil {
		t.Error(output.check(0))
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		log.Info(string(bytes.Repeat([]byte("x"), 1<<20))) // more than a pipe holds
	}()
	for end := time.Now().Add(10 * time.Second); output.check(time.Millisecond) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a blocked log is healthy")
		}
	}
	if err := output.check(time.Hour); err != nil {
		t.Error(err)
	}
	r.Close()
	<-written
	if err := output.check(0); err != nil {
		t.Error(err)
	}
}
