package kubeletapi

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/logs"
)

// want is what a client wants of a log.
type want struct {
	options    logs.Options
	previous   bool
	timestamps bool
	stdout     bool
	stderr     bool
	left       int64 // bytes
}

// errEnough ends a log of which a client wanted no more.
var errEnough = errors.New("enough")

// wantOf reads a query, which has the fields of PodLogOptions.
func wantOf(q url.Values, now time.Time) (want, error) {
	w := want{stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Tail: -1}}
	var errs []error
	number := func(name string, least int64) (int64, bool) {
		text := q.Get(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least {
			errs = append(errs, fmt.Errorf("%s: %.20q is no number of at least %d", name, text, least))
			return 0, false
		}
		return n, true
	}
	yes := func(name string) bool {
		switch q.Get(name) {
		case "", "0", "false":
			return false
		}
		return true
	}
	w.previous, w.timestamps, w.options.Follow = yes("previous"), yes("timestamps"), yes("follow")
	if n, ok := number("tailLines", 0); ok {
		w.options.Tail = int(min(n, math.MaxInt32))
	}
	if n, ok := number("limitBytes", 1); ok {
		w.left = n
	}
	if n, ok := number("sinceSeconds", 1); ok {
		w.options.Since = now.Add(-time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			errs = append(errs, fmt.Errorf("sinceTime: %.40q is no time such as 2026-01-31T12:00:00Z", text))
		}
		w.options.Since = at
	}
	switch q.Get("stream") {
	case "", "All":
	case "Stdout":
		w.stderr = false
	case "Stderr":
		w.stdout = false
	default:
		errs = append(errs, fmt.Errorf("stream: %.20q is none of All, Stdout, Stderr", q.Get("stream")))
	}
	if err := errors.Join(errs...); err != nil {
		return want{}, errdefs.ErrInvalidArgument.WithMessage(err.Error())
	}
	return w, nil
}

// text is a line as the client wants it, and whether that was all of what it
// wants.
func (w *want) text(l logs.Line) (text []byte, over bool) {
	if l.Stderr && !w.stderr || !l.Stderr && !w.stdout {
		return nil, false
	}
	if w.timestamps {
		text = append(l.Time.AppendFormat(text, time.RFC3339Nano), ' ')
	}
	text = append(append(text, l.Text...), '\n')
	if int64(len(text)) >= w.left {
		return text[:w.left], true
	}
	w.left -= int64(len(text))
	return text, false
}
