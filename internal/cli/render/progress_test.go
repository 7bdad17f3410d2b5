package render

import (
	"fmt"
	"strings"
	"testing"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

func TestBar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		width       int
		done, total int64
		utf8        bool
		want        string
	}{
		{10, 0, 100, true, "··········"}, {10, 50, 100, true, "━━━━━·····"}, {10, 100, 100, true, "━━━━━━━━━━"},
		{10, 99, 100, true, "━━━━━━━━━·"}, {10, 200, 100, true, "━━━━━━━━━━"}, {10, -5, 100, true, "··········"},
		{10, 1 << 62, 1 << 62, true, "━━━━━━━━━━"},
		{10, 50, 100, false, "[====    ]"}, {2, 1, 2, false, ""}, {0, 1, 2, true, ""}, {10, 1, 0, true, ""},
	} {
		if got := Bar(c.width, c.done, c.total, c.utf8); got != c.want {
			t.Errorf("Bar(%d, %d, %d) = %q, want %q", c.width, c.done, c.total, got, c.want)
		}
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	var r Rate
	at := time.Unix(1000, 0)
	if _, ok := r.ETA(at, 5); ok || r.PerSecond(at) != 0 {
		t.Error("PerSecond or ETA without a sample")
	}
	for range 200 { // ten seconds at 1000 B/s, more samples than are kept
		r.Add(at, at.Sub(time.Unix(1000, 0)).Milliseconds())
		at = at.Add(50 * time.Millisecond)
	}
	if got := r.PerSecond(at); got < 900 || got > 1000 {
		t.Errorf("%d B/s, want about 1000", got)
	}
	if n := len(r.samples); n > 60 {
		t.Errorf("%d samples are kept, want at most 60", n)
	}
	if eta, ok := r.ETA(at, 5000); !ok || eta < 5*time.Second || eta > 6*time.Second {
		t.Errorf("ETA %s, %v", eta, ok)
	}
	if eta, ok := r.ETA(at, 1<<60); ok {
		t.Errorf("ETA of years is shown: %s", eta)
	}
	// A stall lowers the speed, and a restart does not make it negative.
	if got := r.PerSecond(at.Add(time.Minute)); got > 100 {
		t.Errorf("%d B/s in a stall", got)
	}
	r.Add(at, 0)
	r.Add(at.Add(time.Second), 10)
	if got := r.PerSecond(at.Add(time.Second)); got != 10 {
		t.Errorf("%d B/s after a restart", got)
	}
}

func progress(stage string, layers ...*huskv1.Layer) *huskv1.Progress {
	p := &huskv1.Progress{Ref: "localhost/web", Stage: stage, Layers: layers}
	for _, l := range layers {
		p.DoneBytes += l.DoneBytes
		p.TotalBytes += l.TotalBytes
	}
	return p
}

func TestProgressLines(t *testing.T) {
	t.Parallel()
	var tr Progress
	at := time.Unix(1000, 0)
	canvas := Canvas{Width: 90, Height: 20, UTF8: true}
	if got := tr.Lines(at, canvas); got != nil || tr.Line(at, canvas) != "" {
		t.Errorf("lines without progress: %q", got)
	}
	tr.Update(at, progress("resolving"))
	if got := tr.Lines(at, canvas); len(got) != 1 || got[0] != "localhost/web  resolving" {
		t.Errorf("got %q", got)
	}
	layers := func(done int64) []*huskv1.Layer {
		return []*huskv1.Layer{
			{Digest: "sha256:aaaaaaaaaaaaaaaa", Stage: "downloading", DoneBytes: done, TotalBytes: 20_000_000},
			{Digest: "sha256:bbbbbbbbbbbbbbbb", Stage: "waiting", TotalBytes: 3_000_000},
			{Digest: "sha256:cccccccccccccccc", Stage: "unpacked", DoneBytes: 500, TotalBytes: 500},
			{Digest: "sha256:dddddddddddddddd", Stage: "downloading"},
		}
	}
	tr.Update(at, progress("downloading", layers(0)...))
	tr.Update(at.Add(time.Second), progress("downloading", layers(10_000_000)...))
	want := []string{
		"localhost/web  downloading  ━━━━━━━━━·············  10.0MB / 23.0MB   10.0MB/s    2s left",
		"  aaaaaaaaaaaa  downloading  ━━━━━━━━━━···········  10.0MB / 20.0MB   10.0MB/s    1s left",
		"  bbbbbbbbbbbb  waiting      3.00MB",
		"  cccccccccccc  unpacked     500B",
		"  dddddddddddd  downloading",
	}
	if got := tr.Lines(at.Add(time.Second), canvas); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for width := range 120 {
		for _, line := range tr.Lines(at.Add(time.Second), Canvas{Width: width, Height: 20}) {
			if Width(line) > width {
				t.Errorf("width %d: %q", width, line)
			}
		}
	}
	// Space for three layers: those in progress are shown and the rest is counted.
	got := tr.Lines(at.Add(time.Second), Canvas{Width: 40, Height: 4})
	if len(got) != 4 || !strings.HasPrefix(got[1], "  aaaa") || !strings.HasPrefix(got[2], "  dddd") || got[3] != "  and 2 more layers" {
		t.Errorf("got:\n%s", strings.Join(got, "\n"))
	}
	if got := tr.Lines(at, Canvas{Width: 40, Height: 1}); len(got) > 2 {
		t.Errorf("got %q", got)
	}
	// Another image starts afresh; an unknown total size has no bar.
	tr.Update(at.Add(2*time.Second), &huskv1.Progress{Ref: "-", Stage: "sending", DoneBytes: 5_000_000})
	if got := tr.Line(at.Add(2*time.Second), canvas); got != "-  sending  5.00MB" {
		t.Errorf("got %q", got)
	}
}

func TestProgressIsClean(t *testing.T) {
	t.Parallel()
	var tr Progress
	at := time.Unix(1000, 0)
	tr.Update(at, &huskv1.Progress{Ref: "evil\x1b[2J", Stage: "down\nloading", TotalBytes: 10, Layers: []*huskv1.Layer{{Digest: "a:\x1b[2J", Stage: "\r", TotalBytes: 5}}})
	for _, line := range tr.Lines(at, Canvas{Width: 80, Height: 10}) {
		if strings.ContainsAny(line, "\x1b\n\r") {
			t.Errorf("%q", line)
		}
	}
}

func TestStages(t *testing.T) {
	t.Parallel()
	var s Stages
	layer := func(i int) *huskv1.Layer {
		return &huskv1.Layer{Digest: fmt.Sprint(i), TotalBytes: 1000, DoneBytes: int64(i)}
	}
	var got []string
	for _, p := range []*huskv1.Progress{
		progress(""), progress("resolving"), progress("resolving"), progress("downloading"),
		progress("downloading", layer(1), layer(2)), progress("downloading", layer(3), layer(4)),
		progress("unpacking", layer(1)), progress("done"), {Ref: "other", Stage: "resolving"},
	} {
		if line := s.Next(p); line != "" {
			got = append(got, line)
		}
	}
	want := "resolving localhost/web|downloading localhost/web: 2.00kB in 2 layers|unpacking localhost/web: 1.00kB|resolving other"
	if strings.Join(got, "|") != want {
		t.Errorf("got %q", got)
	}
}
