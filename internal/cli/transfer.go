package cli

import (
	"fmt"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
)

// transferView shows a pull or a load on standard error while it goes on: as
// bars on a terminal, else a line for each stage.
type transferView struct {
	a      *app
	live   *terminal.Live // nil if not on a terminal
	bars   render.Transfer
	stages render.Stages
}

func (a *app) newTransferView() *transferView {
	v := &transferView{a: a}
	if terminal.Fancy(a.errs) {
		v.live = terminal.NewLive(a.errs, func(c render.Canvas) []string { return v.bars.Lines(time.Now(), c) })
	}
	return v
}

func (v *transferView) update(p *huskv1.Progress) {
	if v.live != nil {
		v.live.Update(func() { v.bars.Update(time.Now(), p) })
		return
	}
	if line := v.stages.Next(p); line != "" {
		_, _ = fmt.Fprintln(v.a.errs, line)
	}
}

func (v *transferView) close() {
	if v.live != nil {
		v.live.Close()
	}
}
