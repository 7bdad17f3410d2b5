package housekeeping

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent/eviction"
)

// shortNode is a node with pods and images whose removal makes memory or disk space available.
type shortNode struct {
	memory, disk int64
	images       int64 // what unused images use of the disk
	pods         []eviction.Candidate
	ending       map[string]int // evicted pods, and how often Ended is still false
	stuck        string         // this pod can't be evicted
	log          []string
}

func (n *shortNode) pressure(t *testing.T) *Pressure {
	t.Helper()
	thresholds, err := eviction.Parse(eviction.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return &Pressure{
		Thresholds: thresholds, Log: slog.New(slog.DiscardHandler),
		Observe: func() eviction.Observations {
			return eviction.Observations{eviction.MemoryAvailable: {Available: n.memory, Capacity: 1 << 30}, eviction.NodeFSAvailable: {Available: n.disk, Capacity: 1000}}
		},
		Candidates: func(disk bool) []eviction.Candidate {
			n.log = append(n.log, fmt.Sprintf("rank disk=%t", disk))
			return slices.Clone(n.pods)
		},
		Evict: func(uid, message string) error {
			if uid == n.stuck {
				return errors.New("stuck")
			}
			n.log = append(n.log, "evict "+uid+": "+strings.SplitAfter(message, ".")[0])
			n.ending[uid] = 3
			return nil
		},
		Ended: func(uid string) bool {
			n.ending[uid]--
			if n.ending[uid] > 0 {
				return false
			}
			n.pods = slices.DeleteFunc(n.pods, func(c eviction.Candidate) bool {
				if string(c.Pod.UID) == uid {
					n.memory += c.Memory
					n.disk += c.Disk
				}
				return string(c.Pod.UID) == uid
			})
			return true
		},
		RemoveImages: func(context.Context) {
			n.log = append(n.log, "remove images")
			n.disk += n.images
			n.images = 0
		},
	}
}

func candidate(name string, memory, disk int64) eviction.Candidate {
	return eviction.Candidate{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}, Usage: eviction.Usage{Memory: memory, Disk: disk}}
}

// TestPressure checks what is reclaimed in which order, and that one pod at a time is evicted until
// the node has enough again.
func TestPressure(t *testing.T) {
	const mi = 1 << 20
	for name, c := range map[string]struct {
		node shortNode
		want []string
	}{
		"enough": {shortNode{memory: 200 * mi, disk: 500, pods: []eviction.Candidate{candidate("a", mi, 1)}}, nil},
		"memory": {
			shortNode{memory: 40 * mi, disk: 500, pods: []eviction.Candidate{candidate("small", 10*mi, 1), candidate("large", 30*mi, 1), candidate("medium", 29*mi, 1)}},
			[]string{"rank disk=false", "evict large: The node was low on resource: memory.", "rank disk=false", "evict medium: The node was low on resource: memory.", "rank disk=false", "evict small: The node was low on resource: memory."},
		},
		"images are enough": {shortNode{memory: 200 * mi, disk: 50, images: 100, pods: []eviction.Candidate{candidate("a", mi, 1)}}, []string{"remove images"}},
		"images are not enough": {
			shortNode{memory: 200 * mi, disk: 50, images: 10, pods: []eviction.Candidate{candidate("a", mi, 60), candidate("stuck", mi, 100)}, stuck: "stuck"},
			[]string{"remove images", "rank disk=true", "evict a: The node was low on resource: ephemeral-storage."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := c.node
				n.ending = map[string]int{}
				p := n.pressure(t)
				ctx, cancel := context.WithTimeout(t.Context(), observeInterval-1)
				defer cancel()
				if err := p.Run(ctx); err != nil {
					t.Error(err)
				}
				if !slices.Equal(n.log, c.want) {
					t.Errorf("%q, want %q", n.log, c.want)
				}
				if (len(p.Conditions()) > 0) != (len(c.want) > 0) {
					t.Errorf("conditions %v", p.Conditions())
				}
			})
		})
	}
	if err := (&Pressure{}).Run(t.Context()); err != nil { // without thresholds it ends at once
		t.Error(err)
	}
}
