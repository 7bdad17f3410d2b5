package cli

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// screen emulates enough of a terminal to tell whether a region is redrawn in place.
type screen struct {
	width, height int
	rows          []string // including those that scrolled away
	row, col      int      // of the cursor, in rows
	pending       []byte   // an unfinished sequence
}

func (s *screen) write(data []byte) {
	data = append(s.pending, data...)
	s.pending = nil
	for len(data) > 0 {
		n := s.one(data)
		if n == 0 {
			s.pending = append([]byte(nil), data...)
			return
		}
		data = data[n:]
	}
}

// one processes the first character or sequence and returns its length, 0 if it is incomplete.
func (s *screen) one(data []byte) int {
	switch data[0] {
	case '\r':
		s.col = 0
		return 1
	case '\n':
		s.row++
		return 1
	case 0x1b:
		return s.sequence(data)
	}
	if !utf8.FullRune(data) {
		return 0
	}
	r, size := utf8.DecodeRune(data)
	if s.col == s.width { // wrap
		s.row, s.col = s.row+1, 0
	}
	line := []rune(s.line(s.row))
	for len(line) <= s.col {
		line = append(line, ' ')
	}
	line[s.col] = r
	s.rows[s.row] = string(line)
	s.col++
	return size
}

func (s *screen) sequence(data []byte) int {
	end := 2
	for end < len(data) && (data[end] < '@' || data[end] > '~') {
		end++
	}
	if end >= len(data) {
		return 0
	}
	n, _ := strconv.Atoi(string(data[2:end]))
	switch data[end] {
	case 'A': // up, not beyond the top of the window
		top := max(0, s.row-s.height+1)
		s.row = max(top, s.row-max(1, n))
	case 'K':
		s.rows[s.row] = string([]rune(s.line(s.row))[:min(s.col, utf8.RuneCountInString(s.line(s.row)))])
	case 'J':
		s.rows[s.row] = string([]rune(s.line(s.row))[:min(s.col, utf8.RuneCountInString(s.line(s.row)))])
		s.rows = s.rows[:s.row+1]
	case 'm':
	default:
		panic("the screen doesn't know the sequence " + strconv.Quote(string(data[:end+1])))
	}
	return end + 1
}

func (s *screen) line(row int) string {
	for len(s.rows) <= row {
		s.rows = append(s.rows, "")
	}
	return s.rows[row]
}

// String returns all rows, including those that scrolled away.
func (s *screen) String() string {
	var b strings.Builder
	for _, r := range s.rows {
		b.WriteString(strings.TrimRight(r, " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}
