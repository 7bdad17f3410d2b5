package api

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
)

func TestEndless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		read := make(chan string, 1)
		go func() {
			text, err := io.ReadAll(endless{ctx, strings.NewReader("text")})
			if err != nil {
				t.Error(err)
			}
			read <- string(text)
		}()
		synctest.Wait()
		select {
		case text := <-read:
			t.Errorf("the input has ended after %q although the session goes on", text)
			return
		default:
		}
		cancel()
		if text := <-read; text != "text" {
			t.Errorf("read %q, want all of the input", text)
		}
	})
}
