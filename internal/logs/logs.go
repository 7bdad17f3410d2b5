// Package logs reads container logs in the format that CRI prescribes and
// conmon writes: a line per write, "TIME STREAM TAG TEXT", where the tag P
// marks a part of a line that the next record goes on with, and F its end.
// See kubernetes/design-proposals-archive, node/kubelet-cri-logging.md.
package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Line is one whole line of output.
type Line struct {
	Time   time.Time // of its first part
	Stderr bool
	Text   []byte // without the newline; valid until the next line is asked for
}

// Options say which lines are wanted.
type Options struct {
	Tail   int       // the last so many lines; negative is all
	Since  time.Time // no lines older than this
	Follow bool      // go on until Ended and all is read
	// Ended is closed when the container writes no more.
	Ended <-chan struct{}
}

// maxLine bounds a line that never ends; what is longer is given in pieces.
const maxLine = 1 << 20

// Read calls yield with the lines of the log at path and of the files that were
// moved away from there by log rotation. A missing file is an empty log. While
// following, a file that is moved away is read to its end and then the new one.
func Read(ctx context.Context, path string, o Options, yield func(Line) error) error {
	f, err := os.Open(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("log: %w", err)
	}
	r := &reader{path: path, file: f, options: o, yield: yield}
	defer r.close()
	if err := r.start(); err != nil {
		return err
	}
	if !o.Follow {
		if err := r.readToEnd(); err != nil {
			return err
		}
		return r.flush()
	}
	return r.follow(ctx)
}

// reader joins the parts of lines, of each stream by itself.
type reader struct {
	path       string
	file       *os.File
	options    Options
	yield      func(Line) error
	incomplete []byte   // the beginning of a record that isn't wholly there
	unfinished [2]*Line // by stream: a line whose end isn't there
	skip       int      // lines that are too early
}

// start gives what is wanted of earlier files, and goes to where the present one
// is to be read from.
func (r *reader) start() error {
	at, err := int64(0), error(nil)
	if r.file != nil && r.options.Tail >= 0 {
		at, err = tailOffset(r.file, r.options.Tail)
	}
	if err == nil && at == 0 {
		err = r.readRotated()
	}
	if err == nil && r.file != nil {
		_, err = r.file.Seek(at, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("log %s: %w", r.path, err)
	}
	return nil
}

func (r *reader) close() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

// readToEnd reads to the present end of the file.
func (r *reader) readToEnd() error {
	if r.file == nil {
		return nil
	}
	if err := r.readFrom(r.file); err != nil {
		return fmt.Errorf("log %s: %w", r.path, err)
	}
	return nil
}

// readFrom reads what there is to read.
func (r *reader) readFrom(from io.Reader) error {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		piece, err := in.ReadSlice('\n')
		r.incomplete = append(r.incomplete, piece...)
		switch {
		case err == nil:
			record := r.incomplete[:len(r.incomplete)-1]
			r.incomplete = r.incomplete[len(r.incomplete):]
			if err := r.handleRecord(record); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// handleRecord takes one record. What isn't one, as a crash of the host can leave
// behind, is passed over.
func (r *reader) handleRecord(data []byte) error {
	at, stderr, partial, text, ok := parse(data)
	if !ok || at.Before(r.options.Since) {
		return nil
	}
	stream := 0
	if stderr {
		stream = 1
	}
	line := r.unfinished[stream]
	if line == nil {
		line = &Line{Time: at, Stderr: stderr}
		r.unfinished[stream] = line
	}
	line.Text = append(line.Text, text...)
	if partial && len(line.Text) < maxLine {
		return nil
	}
	r.unfinished[stream] = nil
	if r.skip > 0 {
		r.skip--
		return nil
	}
	return r.yield(*line)
}

// flush gives the lines that never got an end.
func (r *reader) flush() error {
	for stream, line := range r.unfinished {
		if line == nil {
			continue
		}
		r.unfinished[stream] = nil
		if err := r.yield(*line); err != nil {
			return err
		}
	}
	return nil
}

func parse(data []byte) (at time.Time, stderr, partial bool, text []byte, ok bool) {
	stamp, rest, found := bytes.Cut(data, []byte(" "))
	if !found {
		return
	}
	stream, rest, found := bytes.Cut(rest, []byte(" "))
	if !found {
		return
	}
	tags, text, _ := bytes.Cut(rest, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || (string(stream) != "stdout" && string(stream) != "stderr") {
		return
	}
	// The tag field may have more tags behind a colon.
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	return at, string(stream) == "stderr", string(tag) == "P", text, string(tag) == "P" || string(tag) == "F"
}

// tailOffset returns where the last n whole lines of the file begin.
func tailOffset(f *os.File, n int) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	const block = 64 << 10
	end := info.Size()
	if n == 0 {
		return end, nil
	}
	// lineAt is where the record that is being looked at begins; walking back,
	// a record is complete once the newline before it is found.
	var tail []byte // from the current block's start to the end of the record before
	recordEnd := end
	for at := end; at > 0; {
		size := min(block, at)
		at -= size
		buf := make([]byte, size, int(size)+len(tail))
		if _, err := f.ReadAt(buf, at); err != nil {
			return 0, err
		}
		buf = append(buf, tail...)
		for {
			i := bytes.LastIndexByte(buf[:max(0, recordEnd-at-1)], '\n')
			if i < 0 {
				break
			}
			start := at + int64(i) + 1
			// A full record ends a line; the one after it begins the next.
			if _, _, partial, _, ok := parse(bytes.TrimSuffix(buf[i+1:recordEnd-at], []byte("\n"))); ok && !partial {
				n--
				if n < 0 {
					return recordEnd, nil
				}
			}
			recordEnd = start
		}
		tail = buf[:recordEnd-at]
	}
	if _, _, partial, _, ok := parse(bytes.TrimSuffix(tail, []byte("\n"))); ok && !partial && n == 0 && recordEnd < end {
		return recordEnd, nil
	}
	return 0, nil
}
