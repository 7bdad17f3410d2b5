package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// waitInterval is how often husk wait asks for the pods.
const waitInterval = 200 * time.Millisecond

func newWait(a *app) *cobra.Command {
	timeout := flags.Duration(30 * time.Second)
	var wanted string
	var until condition
	cmd := &cobra.Command{
		Use:   "wait POD... --for=CONDITION",
		Short: "Wait until pods are ready, have ended or are gone.",
		Long: `Wait until pods are ready, have ended or are gone.

CONDITION is condition=Ready (all containers are ready; condition=Ready=false
is the opposite; also Initialized and ContainersReady), delete (the pod is
gone), or jsonpath={.status.phase}=PHASE, where PHASE is Pending, Running,
Succeeded, Failed or Stopped.

Exit codes: 0 when all pods meet it; 1 if one doesn't in time, doesn't exist, or
was removed or has ended so that it never will; 2 for an invalid command line.`,
		Example: `husk wait web --for=condition=Ready
husk wait pod/web pod/db --for=delete --timeout=1m
husk wait job-x7k2p --for=jsonpath='{.status.phase}'=Succeeded`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && slices.Contains(podWords, args[0]) {
				args = args[1:]
			}
			return usageerror.Takes(1, -1, "the NAME of a pod")(cmd, args)
		},
		ValidArgsFunction: a.completePods,
	}
	cmd.Flags().StringVar(&wanted, "for", "", "`CONDITION` to wait for")
	cmd.Flags().Var(&timeout, "timeout", "fail after this time; 0 checks once")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if until, err = parseCondition(wanted); err != nil {
			return usageerror.Misuse(cmd, "%v", err)
		}
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		deadline := time.Now().Add(time.Duration(timeout))
		return a.each(kindNames(args), func(name string) error {
			return a.waitFor(ctx, c, name, until, deadline)
		})
	})
	return cmd
}

// waitFor prints that the named pod met the condition. The pod that has the name first is the one
// that is waited for: another that takes its name later is not it.
func (a *app) waitFor(ctx context.Context, c *client.Client, name string, until condition, deadline time.Time) error {
	shown, uid := name, ""
	for {
		answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
		if err != nil {
			return err
		}
		var p *huskv1.Pod
		if uid == "" {
			p, err = findPod(answer.Pods, name)
		} else if i := slices.IndexFunc(answer.Pods, func(p *huskv1.Pod) bool { return p.Uid == uid }); i >= 0 {
			p = answer.Pods[i]
		}
		gone := uid != "" || until.deleted
		if err != nil && (!gone || !errors.Is(err, errNoPod)) {
			return err
		}
		if p != nil {
			uid, shown = p.Uid, render.PodName(p.Namespace, p.Name)
		}
		met, why := until.of(p)
		switch {
		case met:
			_, _ = fmt.Fprintf(a.out, "pod %s %s\n", render.Clean(shown), until.done)
			return nil
		case why != "":
			return fmt.Errorf("pod %s %s: it will never meet --for=%s", render.Clean(shown), why, until.text)
		case time.Until(deadline) <= 0:
			return fmt.Errorf("pod %s did not meet --for=%s in time: husk describe %s shows what it waits for", render.Clean(shown), until.text, render.Clean(shown))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(waitInterval, time.Until(deadline))):
		}
	}
}

// condition is what husk wait waits for.
type condition struct {
	text    string // as it was typed
	done    string // what is printed when it is met
	deleted bool   // met by a pod that is gone
	// met is nil if only the pod's end meets the condition.
	met func(*huskv1.Pod) bool
	// stays is set if a pod that has ended won't meet it later.
	stays bool
}

// of reports whether the pod, which is nil if it is gone, meets the condition, and if it never
// will, why.
func (w condition) of(p *huskv1.Pod) (met bool, why string) {
	switch {
	case p == nil && w.deleted:
		return true, ""
	case p == nil:
		return false, "was removed"
	case w.met != nil && w.met(p):
		return true, ""
	case w.stays && slices.Contains([]string{"Succeeded", "Failed", "Stopped"}, p.Phase):
		return false, "is " + p.Phase
	}
	return false, ""
}

// parseCondition parses the argument of --for, which kubectl takes too.
func parseCondition(text string) (condition, error) {
	kind, rest, _ := strings.Cut(text, "=")
	switch kind {
	case "":
		return condition{}, errors.New("husk wait needs --for=condition=Ready, --for=delete or --for=jsonpath={.status.phase}=PHASE")
	case "delete":
		if rest == "" {
			return condition{text: text, done: "is gone", deleted: true}, nil
		}
	case "condition":
		return parsePodCondition(text, rest)
	case "jsonpath":
		path, value, ok := strings.Cut(rest, "=")
		if strings.Trim(path, "{}'") == ".status.phase" && ok {
			if !slices.Contains([]string{"Pending", "Running", "Succeeded", "Failed", "Stopped"}, value) {
				return condition{}, fmt.Errorf("no pod has the phase %q: it is Pending, Running, Succeeded, Failed or Stopped", value)
			}
			return condition{text: text, done: "is " + value, stays: true, met: func(p *huskv1.Pod) bool { return p.Phase == value }}, nil
		}
		return condition{}, fmt.Errorf("--for=%s: husk wait knows only jsonpath={.status.phase}=PHASE", text)
	}
	return condition{}, fmt.Errorf("--for=%s is not condition=Ready, delete or jsonpath={.status.phase}=PHASE", text)
}

// parsePodCondition parses what follows "condition=".
func parsePodCondition(text, rest string) (condition, error) {
	name, value, _ := strings.Cut(strings.ToLower(rest), "=")
	want := value != "false"
	if value != "" && value != "true" && value != "false" {
		return condition{}, fmt.Errorf("--for=%s: a condition is true or false", text)
	}
	holds := podReady
	switch name {
	case "ready", "containersready":
	case "initialized":
		holds = func(p *huskv1.Pod) bool { return p.Initialized }
	default:
		return condition{}, fmt.Errorf("--for=%s: pods have the conditions Ready, ContainersReady and Initialized", text)
	}
	return condition{
		text: text, done: "meets " + rest, stays: want,
		met: func(p *huskv1.Pod) bool { return holds(p) == want },
	}, nil
}

// podReady reports whether all containers that should run are ready.
func podReady(p *huskv1.Pod) bool {
	some := false
	for _, one := range p.Containers {
		if one.Init && !one.Sidecar {
			continue
		}
		if !one.Ready || one.State != "Running" {
			return false
		}
		some = true
	}
	return some && p.Phase == "Running"
}
