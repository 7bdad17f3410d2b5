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

// progressInterval is how often progress is reported.
const progressInterval = 100 * time.Millisecond

// The stages of a pull or load. Reading an archive counts as a download.
const (
	Resolving   = "resolving"
	Downloading = "downloading"
	Unpacking   = "unpacking"
	Done        = "done"
)

// Further stages of a layer, in addition to Downloading and Unpacking.
const (
	Waiting    = "waiting"
	Downloaded = "downloaded"
	Unpacked   = "unpacked"
)

// Progress is the progress of a pull or load.
type Progress struct {
	Ref   string // the image; empty while an archive is read
	Stage string
	// Done and Total count downloaded bytes. Total is 0 before it is known,
	// and while an archive is read.
	Done, Total int64
	Layers      []LayerProgress
}

// LayerProgress is the progress of one layer.
type LayerProgress struct {
	Digest      string
	Stage       string
	Done, Total int64 // downloaded bytes
}

// tracker tracks the progress of one pull or load.
type tracker struct {
	ref string
	// moved changes whenever the download or unpacking advances. A pull whose moved
	// stays the same is stalled.
	moved atomic.Int64
	read  atomic.Int64 // bytes of an archive
	// onMove, if set, is called when moved changes.
	onMove func()

	// leaders are the trackers of all layers being downloaded, by key. When a pull waits for
	// another's download of a layer, it reports the progress of its leader.
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
	source    string      // the registry's name, set before the download
	following atomic.Bool // waits for the lock on the blob, which another pull may hold
}

func (u *unpacker) newTracker(ref string) *tracker {
	return &tracker{ref: ref, stage: Resolving, leaders: &u.leaders}
}

func (t *tracker) move(n int) {
	t.moved.Add(int64(n))
	if t.onMove != nil {
		t.onMove()
	}
}

func (t *tracker) enter(stage string) {
	t.moved.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stage = stage
}

// reset sets the current image and its layers.
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

// key is that of the layer's download, which pulls from one registry share.
func (l *layerTracker) key() string { return l.source + " " + l.digest.String() }

// lead makes l the leader of its layer until leave is called.
func (l *layerTracker) lead() (leave func()) {
	l.tracker.leaders.Store(l.key(), l)
	return func() { l.tracker.leaders.CompareAndDelete(l.key(), l) }
}

// leader returns the tracker of the pull that downloads the layer.
func (l *layerTracker) leader() *layerTracker {
	if l.following.Load() {
		if leader, ok := l.tracker.leaders.Load(l.key()); ok {
			return leader.(*layerTracker)
		}
	}
	return l
}

// at records that the download has reached offset.
func (l *layerTracker) at(offset int64) {
	l.tracker.move(1)
	l.done.Store(offset)
}

// reader returns r, counting reads from it as movement.
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
		p.Done = 0 // summed up over the layers
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

// watch calls cancel once nothing has moved for between limit and twice that. It
// ends with the context.
func (t *tracker) watch(ctx context.Context, limit time.Duration, cancel func()) {
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
			cancel()
			return
		}
		last = now
	}
}

// position returns a number that changes whenever this pull, or one it waits for, moves.
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
