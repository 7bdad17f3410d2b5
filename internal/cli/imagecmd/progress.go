package imagecmd

import (
	"fmt"
	"os"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
)

// progressView shows the progress of a pull or a load on standard error: as bars on a terminal, or
// else a line for each stage.
type progressView struct {
	errs   *os.File
	live   *terminal.Live // nil if standard error is not a terminal
	bars   render.Progress
	stages render.Stages
}

func (t *tool) newProgressView() *progressView {
	v := &progressView{errs: t.Errs}
	if terminal.Fancy(t.Errs) {
		v.live = terminal.NewLive(t.Errs, func(c render.Canvas) []string { return v.bars.Lines(time.Now(), c) })
	}
	return v
}

func (v *progressView) update(p *huskv1.Progress) {
	if v.live != nil {
		v.live.Update(func() { v.bars.Update(time.Now(), p) })
		return
	}
	if line := v.stages.Next(p); line != "" {
		_, _ = fmt.Fprintln(v.errs, line)
	}
}

func (v *progressView) close() {
	if v.live != nil {
		v.live.Close()
	}
}
