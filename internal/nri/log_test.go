package nri

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
)

// TestLogWithoutWebAssembly checks that a build without WebAssembly doesn't log an error at each
// start, and that other errors are logged.
func TestLogWithoutWebAssembly(t *testing.T) {
	before := adaptationLog.Load()
	defer adaptationLog.Store(before)
	var out bytes.Buffer
	adaptationLog.Store(slog.New(slog.NewTextHandler(&out, nil)))
	logger{}.Errorf(t.Context(), "failed to initialize WASM support: %v", adaptation.ErrWasmDisabled)
	if out.Len() > 0 {
		t.Errorf("logged: %s", out.String())
	}
	logger{}.Errorf(t.Context(), "failed: %v", errors.New("other"))
	if !strings.Contains(out.String(), "level=ERROR") {
		t.Errorf("logged: %s", out.String())
	}
}
