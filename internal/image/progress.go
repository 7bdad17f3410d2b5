package image

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
)

// progressInterval is how often whoever listens is told of progress.
const progressInterval = 100 * time.Millisecond

// The stages of a pull or load. The archive that is loaded counts as a download.
const (
	Resolving   = "resolving"
	Downloading = "downloading"
	Unpacking   = "unpacking"
	Done        = "done"
)

// The stages of a layer, beside Downloading and Unpacking.
const (
	Waiting    = "waiting"
	Downloaded = "downloaded"
	Unpacked   = "unpacked"
)

// Progress tells how far a pull or load is.
type Progress struct {
	Ref   string // the image; empty while an archive is read
	Stage string
	// Done and Total count downloaded bytes. Total is 0 before it is known,
	// and while an archive is read.
	Done, Total int64
	Layers      []LayerProgress
}

// LayerProgress tells how far one layer is.
type LayerProgress struct {
	Digest      string
	Stage       string
	Done, Total int64 // downloaded bytes
}

// tracker collects the progress of one pull or load. Whoever works on it says
// what happens; whoever listens takes snapshots.
type tracker struct {
	ref string
	// moved counts bytes, of downloads and unpacking, in no particular unit: a
	// pull is stuck when it stays the same.
	moved atomic.Int64
	read  atomic.Int64 // bytes of an archive
	// listen, if set, is called when something has moved.
	listen func()

	// leaders are the trackers of the layers that are being downloaded, by
	// digest, of this pull or of another that it waits for.
	leaders *sync.Map

	mu     sync.Mutex
	stage  string
	layers []*layerTracker
}

type layerTracker struct {
	tracker   *tracker
	digest    digest.Digest
	total     int64
	done      atomic.Int64
	stage     atomic.Pointer[string]
	following atomic.Bool // another pull may be downloading it
}

func (a *assembler) track(ref string) *tracker {
	return &tracker{ref: ref, stage: Resolving, leaders: &a.leaders}
}

func (t *tracker) move(n int) {
	t.moved.Add(int64(n))
	if t.listen != nil {
		t.listen()
	}
}

func (t *tracker) enter(stage string) {
	t.moved.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stage = stage
}

// reset names the image that is worked on now and its layers.
func (t *tracker) reset(ref string, layers []*layerTracker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ref, t.layers = ref, layers
}

func (t *tracker) layer(d digest.Digest, total int64) *layerTracker {
	l := &layerTracker{tracker: t, digest: d, total: total}
	l.enter(Waiting)
	return l
}

func (l *layerTracker) enter(stage string) {
	l.stage.Store(&stage)
	if stage == Downloaded || stage == Unpacked {
		l.done.Store(l.total)
	}
}

// lead makes the layer's progress that of all who wait for it, until left.
func (l *layerTracker) lead() (leave func()) {
	l.tracker.leaders.Store(l.digest, l)
	return func() { l.tracker.leaders.CompareAndDelete(l.digest, l) }
}

// leader returns the tracker that knows how far the layer is.
func (l *layerTracker) leader() *layerTracker {
	if l.following.Load() {
		if leader, ok := l.tracker.leaders.Load(l.digest); ok {
			return leader.(*layerTracker)
		}
	}
	return l
}

// at says that the download has reached offset.
func (l *layerTracker) at(offset int64) {
	l.tracker.move(1)
	l.done.Store(offset)
}

// reader counts what is read from r as movement.
func (l *layerTracker) reader(r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		l.tracker.move(n)
		return n, err
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func (t *tracker) snapshot() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Progress{Ref: t.ref, Stage: t.stage, Done: t.read.Load()}
	if len(t.layers) > 0 {
		p.Done = 0 // counted by layer
	}
	unpacking := len(t.layers) > 0
	for _, l := range t.layers {
		leader := l.leader()
		lp := LayerProgress{Digest: l.digest.String(), Stage: *leader.stage.Load(), Done: leader.done.Load(), Total: l.total}
		p.Done += lp.Done
		p.Total += lp.Total
		p.Layers = append(p.Layers, lp)
		unpacking = unpacking && slices.Contains([]string{Downloaded, Unpacking, Unpacked}, lp.Stage)
	}
	if p.Stage == Downloading && unpacking {
		p.Stage = Unpacking
	}
	return p
}

// watch calls cut when nothing has moved for limit, twice that at most. It
// ends with the context.
func (t *tracker) watch(ctx context.Context, limit time.Duration, cut func()) {
	ticker := time.NewTicker(limit)
	defer ticker.Stop()
	last := t.position()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := t.position()
		if now == last {
			cut()
			return
		}
		last = now
	}
}

// position changes whenever the pull, or one that it waits for, has moved.
func (t *tracker) position() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.moved.Load()
	for _, l := range t.layers {
		if leader := l.leader(); leader != l {
			at += leader.tracker.moved.Load()
		}
	}
	return at
}
