// Package top shows what pods use of the machine, once or as it changes.
package top

import (
	"context"
	"os"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
)

// gap is the time between two looks, of which the rates are.
const gap = time.Second

// Top looks at what pods use, again and again.
type Top struct {
	Client *client.Client
	Pod    string // empty for all
	// By is the order: name, cpu or memory. Containers has a row for each.
	By         string
	Containers bool

	last []*huskv1.PodUsage
	// Views are those of the last look.
	Views []render.UsageView
}

// Table has the views.
func (t *Top) Table() *render.Table { return render.UsageTable(t.Views, t.Containers) }

// Begin takes the first views.
func (t *Top) Begin(ctx context.Context) error {
	if err := t.look(ctx); err != nil {
		return err
	}
	return t.next(ctx)
}

// look takes the views from this look and the one before.
func (t *Top) look(ctx context.Context) error {
	answer, err := t.Client.Usage(ctx, &huskv1.UsageRequest{Name: t.Pod})
	if err != nil {
		return err
	}
	t.Views = render.UsageViews(t.last, answer.Pods)
	render.SortUsage(t.Views, t.By)
	t.last = answer.Pods
	return nil
}

// next is look when it is time for it.
func (t *Top) next(ctx context.Context) error {
	select {
	case <-time.After(gap):
		return t.look(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Follow draws the table in place on a terminal until ctx or the pod ends. The
// last one stays.
func (t *Top) Follow(ctx context.Context, on *os.File) error {
	draw := func() []string {
		var b strings.Builder
		_ = t.Table().Write(&b, true) // to memory
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
	lines := draw()
	live := terminal.NewLive(on, func(render.Canvas) []string { return lines })
	for {
		if err := t.next(ctx); err != nil {
			live.Close()
			_ = t.Table().Write(on, true) // as far as it can be shown
			return err
		}
		live.Update(func() { lines = draw() })
	}
}
