// Package logs reads and rotates container logs in CRI's format, which conmon writes. Each record
// is a line "TIME STREAM TAG TEXT". The tag P marks a part of a line that continues in the next
// record, F the end of a line. See kubernetes/design-proposals-archive,
// node/kubelet-cri-logging.md.
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

// Line is a line of output, or a part of one.
type Line struct {
	Time   time.Time // of its first part
	Stderr bool
	Text   []byte // without the newline; valid until the next line is read
	// Partial says that no newline follows: the line continues, or the program has ended within it.
	Partial bool
}

// Options select the lines to read.
type Options struct {
	Tail   int       // number of lines at the end; negative means all
	Since  time.Time // skip lines older than this
	Follow bool      // continue until Ended is closed and everything is read
	Parts  bool      // yield each part of a line as soon as it is there
	// Ended is closed when the container has ended and writes no more.
	Ended <-chan struct{}
}

// maxLine is the maximum length of a line. Longer lines are split.
const maxLine = 1 << 20

// Read calls yield with the lines of the log at path, including its rotated files. A missing file
// is an empty log. When a followed log is rotated, Read continues with the new file after it has
// read the old one to its end.
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

// reader assembles lines from their parts, separately for each stream.
type reader struct {
	path       string
	file       *os.File
	options    Options
	yield      func(Line) error
	incomplete []byte   // beginning of a record without its end
	unfinished [2]*Line // by stream: a line without its end
	skip       int      // number of lines to skip before the first one
}

// start yields the wanted lines of rotated files, and seeks the current file to its first wanted
// line.
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

// readToEnd reads to the current end of the file.
func (r *reader) readToEnd() error {
	if r.file == nil {
		return nil
	}
	if err := r.readFrom(r.file); err != nil {
		return fmt.Errorf("log %s: %w", r.path, err)
	}
	return nil
}

// readFrom reads records until the end of from.
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

// handleRecord handles a record. It ignores anything else, which a crash of the host can leave
// behind.
func (r *reader) handleRecord(data []byte) error {
	at, stderr, partial, text, ok := parse(data)
	if !ok || at.Before(r.options.Since) {
		return nil
	}
	if r.options.Parts {
		return r.deliver(Line{Time: at, Stderr: stderr, Text: text, Partial: partial})
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
	if line.Partial = partial; partial && len(line.Text) < maxLine {
		return nil
	}
	r.unfinished[stream] = nil
	return r.deliver(*line)
}

// deliver yields a line unless it is one of those to skip.
func (r *reader) deliver(line Line) error {
	if r.skip == 0 {
		return r.yield(line)
	}
	if !line.Partial {
		r.skip--
	}
	return nil
}

// flush yields the lines without an end.
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
	// Further tags may follow after a colon.
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	return at, string(stream) == "stderr", string(tag) == "P", text, string(tag) == "P" || string(tag) == "F"
}

// tailOffset returns the offset of the last n complete lines of the file.
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
	// The file is read backwards in blocks. A record is complete once the newline before it is
	// found.
	var tail []byte // from the start of the last block to recordEnd
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
			// A record with tag F ends a line, so the next record begins one.
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
