package registry

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestRetry checks how often an attempt is repeated, and how long Retry pauses in total.
func TestRetry(t *testing.T) {
	transient, permanent := io.ErrUnexpectedEOF, errors.New("permanent")
	type attempt struct {
		progress bool
		err      error
	}
	for name, test := range map[string]struct {
		attempts []attempt // the last one is repeated
		calls    int
		want     error
		took     time.Duration
	}{
		"success":           {[]attempt{{}}, 1, nil, 0},
		"second attempt":    {[]attempt{{err: transient}, {}}, 2, nil, firstBackoff},
		"permanent error":   {[]attempt{{err: permanent}}, 1, permanent, 0},
		"becomes permanent": {[]attempt{{err: transient}, {err: transient}, {err: permanent}}, 3, permanent, 3 * firstBackoff},
		"always transient":  {[]attempt{{err: transient}}, maxAttempts, transient, (1 + 2 + 4 + 8) * firstBackoff},
		// Progress starts a new series: its own attempt counts as none.
		"progress once": {[]attempt{{err: transient}, {err: transient}, {true, transient}, {err: transient}}, 3 + maxAttempts, transient, (1 + 2 + 1 + 2 + 4 + 8 + 16) * firstBackoff},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, start := 0, time.Now()
				err := Retry(t.Context(), func() (bool, error) {
					a := test.attempts[min(calls, len(test.attempts)-1)]
					calls++
					return a.progress, a.err
				})
				if !errors.Is(err, test.want) || calls != test.calls || time.Since(start) != test.took {
					t.Errorf("%d calls in %v, %v, want %d in %v, %v", calls, time.Since(start), err, test.calls, test.took, test.want)
				}
			})
		})
	}
}

// TestRetryIsCancelled checks that the end of the context ends a pause.
func TestRetryIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), firstBackoff/2)
		defer cancel()
		calls := 0
		err := Retry(ctx, func() (bool, error) { calls++; return false, io.EOF })
		if !errors.Is(err, io.EOF) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
	})
}
