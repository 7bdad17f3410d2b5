package logs

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// rotatedFile is an open rotated file of a log.
type rotatedFile struct{ file *os.File }

// openRotated opens the rotated files before the current one, the oldest first. current may have
// been rotated in the meantime.
func openRotated(path string, current *os.File) (open []rotatedFile, err error) {
	defer func() {
		if err != nil {
			closeRotated(open)
		}
	}()
	files, err := rotatedPaths(path)
	if err != nil {
		return nil, err
	}
	for i, name := range files {
		if i > 0 && files[i-1]+compressed == name {
			continue // a crash during compression has left both files
		}
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(name, compressed) {
			f, err = os.Open(name + compressed) // compressed in the meantime
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime
		}
		if err != nil {
			return open, err
		}
		open = append(open, rotatedFile{f})
		if sameFile(f, current) {
			open = open[:len(open)-1]
			_ = f.Close()
		}
	}
	return open, nil
}

func sameFile(a, b *os.File) bool {
	if b == nil {
		return false
	}
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

func closeRotated(open []rotatedFile) {
	for _, p := range open {
		_ = p.file.Close()
	}
}

// reader returns a reader of the whole file.
func (p rotatedFile) reader() (io.Reader, error) {
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(p.file.Name(), compressed) {
		return p.file, nil
	}
	return gzip.NewReader(p.file)
}

// header returns the beginning of the file.
func (p rotatedFile) header() []byte {
	out := make([]byte, maxHeader)
	in, err := p.reader()
	if err != nil {
		return nil
	}
	n, _ := io.ReadFull(in, out) // it may be shorter
	return out[:n]
}

// readRotated yields the wanted lines of the rotated files. It is called if all lines of the
// current file are wanted.
func (r *reader) readRotated() error {
	open, err := openRotated(r.path, r.file)
	if err != nil || len(open) == 0 {
		return err
	}
	defer closeRotated(open)
	first := 0
	if r.options.Tail >= 0 {
		have, err := r.countCurrent()
		if err != nil {
			return err
		}
		for first = len(open); first > 0 && have < r.options.Tail; first-- {
			in, err := open[first-1].reader()
			if err == nil {
				var n int
				n, err = countLines(in)
				have += n
			}
			if err != nil {
				return fmt.Errorf("%s: %w", open[first-1].file.Name(), err)
			}
		}
		if first < len(open) {
			r.skip = max(0, have-r.options.Tail)
		}
	}
	for _, p := range open[first:] {
		in, err := p.reader()
		if err == nil {
			err = r.readFrom(in)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.file.Name(), err)
		}
	}
	return nil
}

// countCurrent counts the lines of the current file.
func (r *reader) countCurrent() (int, error) {
	if r.file == nil {
		return 0, nil
	}
	defer func() { _, _ = r.file.Seek(0, io.SeekStart) }()
	return countLines(r.file)
}

// countLines counts the ends of lines.
func countLines(in io.Reader) (n int, err error) {
	lines := bufio.NewReaderSize(in, 64<<10)
	var record []byte
	for {
		piece, err := lines.ReadSlice('\n')
		if len(record) < maxHeader {
			record = append(record, piece...)
		}
		switch {
		case err == nil:
			if _, _, partial, _, ok := parse(bytes.TrimSuffix(record, []byte("\n"))); ok && !partial {
				n++
			}
			record = record[:0]
		case errors.Is(err, io.EOF):
			return n, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return n, err
		}
	}
}

// maxHeader is more than the length of a record before its text.
const maxHeader = 256
