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

// logQuery selects a part of a log, as PodLogOptions does.
type logQuery struct {
	options    logs.Options
	previous   bool
	timestamps bool
	stdout     bool
	stderr     bool
	left       int64 // bytes that may still be sent
	midLine    bool  // what was sent last has no newline yet
}

// errLimit ends the reading of a log at the query's limit.
var errLimit = errors.New("limit reached")

// parseLogQuery parses the fields of PodLogOptions in a URL.
func parseLogQuery(q url.Values, now time.Time) (logQuery, error) {
	query := logQuery{stdout: true, stderr: true, left: math.MaxInt64, options: logs.Options{Tail: -1, Parts: true}}
	var errs []error
	number := func(name string, least int64) (int64, bool) {
		text := q.Get(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least {
			errs = append(errs, fmt.Errorf("%s: %.20q is not a number of at least %d", name, text, least))
			return 0, false
		}
		return n, true
	}
	flag := func(name string) bool {
		switch q.Get(name) {
		case "", "0", "false":
			return false
		}
		return true
	}
	query.previous, query.timestamps, query.options.Follow = flag("previous"), flag("timestamps"), flag("follow")
	if n, ok := number("tailLines", 0); ok {
		query.options.Tail = int(min(n, math.MaxInt32))
	}
	if n, ok := number("limitBytes", 1); ok {
		query.left = n
	}
	if n, ok := number("sinceSeconds", 1); ok {
		query.options.Since = now.Add(-time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			errs = append(errs, fmt.Errorf("sinceTime: %.40q is not a time such as 2026-01-31T12:00:00Z", text))
		}
		query.options.Since = at
	}
	switch q.Get("stream") {
	case "", "All":
	case "Stdout":
		query.stderr = false
	case "Stderr":
		query.stdout = false
	default:
		errs = append(errs, fmt.Errorf("stream: %.20q is none of All, Stdout, Stderr", q.Get("stream")))
	}
	if err := errors.Join(errs...); err != nil {
		return logQuery{}, errdefs.ErrInvalidArgument.WithMessage(err.Error())
	}
	return query, nil
}

// format returns the text to send for a part of a line, and whether the query's limit is reached.
func (q *logQuery) format(l logs.Line) (text []byte, done bool) {
	if l.Stderr && !q.stderr || !l.Stderr && !q.stdout {
		return nil, false
	}
	if q.timestamps && !q.midLine {
		text = append(l.Time.AppendFormat(text, time.RFC3339Nano), ' ')
	}
	text = append(text, l.Text...)
	if q.midLine = l.Partial; !l.Partial {
		text = append(text, '\n')
	}
	if int64(len(text)) >= q.left {
		return text[:q.left], true
	}
	q.left -= int64(len(text))
	return text, false
}
