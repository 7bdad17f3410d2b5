package agent

import (
	"testing"
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
)

// TestAnchor: the times of a record that is read aren't in the future, and don't depend on the wall
// clock from then on.
func TestAnchor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rec := record{Started: now.Add(-time.Minute).Round(0), Since: now.Add(time.Hour).Round(0), Evicted: &podplan.Eviction{At: now.Add(time.Hour).Round(0)}}
	read := rec
	read.anchor(now)
	if !read.Started.Equal(now.Add(-time.Minute)) || read.Started == read.Started.Round(0) || !read.Since.Equal(now) || !read.Evicted.At.Equal(now) {
		t.Errorf("%+v, %+v", read, read.Evicted)
	}
	if !rec.Evicted.At.After(now) {
		t.Error("the eviction of another record has changed")
	}
	read = record{}
	if read.anchor(now); !read.Since.IsZero() || !read.Started.IsZero() {
		t.Errorf("%+v", read)
	}
}
