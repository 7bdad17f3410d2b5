package systemcmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) prune() *cobra.Command {
	var req huskv1.PruneRequest
	var force bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove pods that have ended, images without a name, and with flags more.",
		Long: `Remove pods that have ended, images without a name, and with flags more.

Pods are those of husk run that have ended or were stopped. What a manifest in
the manifests directory, a workload or a kept object declares stays, and so do
pods of a kubelet or of an API server.`,
		Example: `husk system prune
husk system prune --all --volumes
husk system prune --force`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&req.AllImages, "all", "a", false, "also remove images that have a name, if nothing uses them")
	cmd.Flags().BoolVar(&req.Volumes, "volumes", false, "also remove volumes that no pod uses and nothing declares, with their files")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "don't ask first")
	remove := t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		r, err := c.Prune(ctx, &huskv1.PruneRequest{AllImages: req.AllImages, Volumes: req.Volumes})
		if err != nil {
			return err
		}
		return t.report(r)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case force:
		case !terminal.Is(t.In):
			return usageerror.Misuse(cmd, "there is no terminal to ask on: add --force to remove without a question")
		case !t.confirm(&req):
			_, _ = fmt.Fprintln(t.Errs, "nothing was removed")
			return nil
		}
		return remove(cmd, args)
	}
	return cmd
}

// confirm asks on the terminal whether to go on.
func (t *tool) confirm(req *huskv1.PruneRequest) bool {
	what := []string{"pods of husk run that have ended or were stopped"}
	if req.AllImages {
		what = append(what, "images that nothing uses or declares")
	} else {
		what = append(what, "images that have no name and that nothing uses")
	}
	if req.Volumes {
		what = append(what, "volumes that no pod uses and nothing declares, with their files")
	}
	_, _ = fmt.Fprintf(t.Errs, "this removes\n  %s\ncontinue? [y/N] ", strings.Join(what, "\n  "))
	answer, _ := bufio.NewReader(t.In).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

// report prints what was removed. Its error is about what was not.
func (t *tool) report(r *huskv1.PruneResponse) error {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(t.Out, format+"\n", args...) }
	for _, name := range r.Pods {
		say("pod %s removed", render.Clean(name))
	}
	for _, name := range r.Volumes {
		say("volume %s removed", render.Clean(name))
	}
	for _, name := range r.Images {
		say("image %s removed", render.Clean(name))
	}
	say("freed %s", render.Size(r.FreedBytes))
	for _, name := range r.DeclaredVolumes {
		_, _ = fmt.Fprintf(t.Errs, "volume %s is still declared: husk volume rm removes it with its files\n", render.Clean(name))
	}
	var problems []error
	for _, p := range r.Problems {
		problems = append(problems, errors.New(render.OneLine(p)))
	}
	return errors.Join(problems...)
}
