package terminal

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/huskd/husk/internal/cli/render"
)

// frameInterval is the time between two drawings: ten per second look alive and cost little.
const frameInterval = 100 * time.Millisecond

// Live is a region at the end of the output on a terminal that is redrawn in place.
type Live struct {
	f     *os.File
	frame func(render.Canvas) []string
	utf8  bool

	mu    sync.Mutex
	drawn []string // the lines on the screen, above the cursor
	done  chan struct{}
	ended sync.WaitGroup
}

// NewLive draws what frame returns at regular intervals until Close, at the current size of the
// terminal. Calls of frame and of the functions given to Update and Above never overlap.
func NewLive(f *os.File, frame func(render.Canvas) []string) *Live {
	l := &Live{f: f, frame: frame, utf8: UTF8(), done: make(chan struct{})}
	l.ended.Go(func() {
		defer Guard()
		tick := time.NewTicker(frameInterval)
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

// Update runs change, which may modify what frame reads. The next frame shows it.
func (l *Live) Update(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// Above runs write, whose output appears above the region or goes elsewhere.
func (l *Live) Above(write func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
	write()
	l.draw()
}

// Close stops drawing and removes the region.
func (l *Live) Close() {
	close(l.done)
	l.ended.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
}

// size returns the terminal's size without the last column, where some terminals wrap, and without
// the last row, where the cursor is.
func (l *Live) size() render.Canvas {
	w, h, ok := Size(l.f)
	if !ok {
		w, h = 80, 24
	}
	return render.Canvas{Width: max(1, w-1), Height: max(1, h-1), UTF8: l.utf8}
}

// draw replaces the region with a new frame, in one write so that it doesn't flicker. The caller
// holds l.mu, as for clear.
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
		fmt.Fprintf(&b, "%s\x1b[K\n", line) // clear the rest of the old line
	}
	b.WriteString("\x1b[J") // and any further rows
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

// rewind moves the cursor to the region's first row. If the window became narrower, its lines have
// wrapped and take more rows.
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
