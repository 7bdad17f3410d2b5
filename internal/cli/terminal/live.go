package terminal

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/huskd/husk/internal/cli/render"
)

// frameGap is the time between two drawings: ten a second look alive and cost
// nothing.
const frameGap = 100 * time.Millisecond

// Live is a region at the end of a terminal's output that is redrawn in place.
type Live struct {
	f     *os.File
	frame func(render.Canvas) []string
	utf8  bool

	mu    sync.Mutex
	drawn []string // as they are on the screen, above the cursor
	done  chan struct{}
	ended sync.WaitGroup
}

// NewLive starts to draw what frame returns, until Close. The terminal's size
// is looked up each time; frame is never called by two at once, nor while a
// function given to Update or Above runs.
func NewLive(f *os.File, frame func(render.Canvas) []string) *Live {
	l := &Live{f: f, frame: frame, utf8: UTF8(), done: make(chan struct{})}
	l.ended.Go(func() {
		defer Guard()
		tick := time.NewTicker(frameGap)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.Update(l.draw)
			case <-l.done:
				return
			}
		}
	})
	return l
}

// Update runs change, which may touch what frame reads. The next frame shows it.
func (l *Live) Update(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// Above runs write, whose output goes above the region, to this terminal or elsewhere.
func (l *Live) Above(write func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
	write()
	l.draw()
}

// Close ends the drawing and removes the region.
func (l *Live) Close() {
	close(l.done)
	l.ended.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
}

// size leaves the last column free, where some terminals would wrap, and the
// last row, where the cursor is.
func (l *Live) size() render.Canvas {
	w, h, ok := Size(l.f)
	if !ok {
		w, h = 80, 24
	}
	return render.Canvas{Width: max(1, w-1), Height: max(1, h-1), UTF8: l.utf8}
}

// draw replaces the region by a new frame, in one write so that it doesn't
// flicker. The caller holds the lock, as for clear.
func (l *Live) draw() {
	size := l.size()
	lines := l.frame(size)
	if len(lines) > size.Height {
		lines = lines[:size.Height]
	}
	var b bytes.Buffer
	l.rewind(&b, size)
	l.drawn = l.drawn[:0]
	for _, line := range lines {
		line = render.Cut(line, size.Width)
		l.drawn = append(l.drawn, line)
		fmt.Fprintf(&b, "%s\x1b[K\n", line) // clear what the old line had more
	}
	b.WriteString("\x1b[J") // and the rows that it had more
	_, _ = l.f.Write(b.Bytes())
}

func (l *Live) clear() {
	if len(l.drawn) == 0 {
		return
	}
	var b bytes.Buffer
	l.rewind(&b, l.size())
	b.WriteString("\x1b[J")
	l.drawn = l.drawn[:0]
	_, _ = l.f.Write(b.Bytes())
}

// rewind moves the cursor to the region's first row. A window that became
// narrower has wrapped its lines, which then take more rows.
func (l *Live) rewind(b *bytes.Buffer, size render.Canvas) {
	rows := 0
	for _, line := range l.drawn {
		rows += max(1, (render.Width(line)+size.Width)/(size.Width+1))
	}
	if rows = min(rows, size.Height); rows > 0 {
		fmt.Fprintf(b, "\x1b[%dA", rows)
	}
	b.WriteByte('\r')
}
