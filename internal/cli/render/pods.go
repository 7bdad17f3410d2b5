package render

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

const defaultNamespace = "default"

// namespaced reports whether the table needs a column for namespaces.
func namespaced(pods []*huskv1.Pod) bool {
	return slices.ContainsFunc(pods, func(p *huskv1.Pod) bool { return p.Namespace != defaultNamespace })
}

// PodTable returns a table with a row for each pod.
func PodTable(pods []*huskv1.Pod, wide bool, now time.Time) *Table {
	header := []string{"NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"}
	spaces := namespaced(pods)
	if spaces {
		header = append([]string{"NAMESPACE"}, header...)
	}
	of := owned(pods)
	if of {
		header = append(header, "OWNER")
	}
	if wide {
		header = append(header, "ID", "RUNTIME", "SOURCE", "IMAGES")
	}
	t := NewTable(header...)
	for _, p := range pods {
		s := StatusOf(p)
		row := []any{p.Name, s.ReadyText(), Cell{Text: s.Word, Style: s.Style()}, s.RestartsText(now), AgeAt(now, p.CreatedNs)}
		if spaces {
			row = append([]any{p.Namespace}, row...)
		}
		shown := p.Ips
		if !wide {
			shown = p.Ips[:min(1, len(p.Ips))]
		}
		row = append(row, orNone(strings.Join(shown, ",")))
		if of {
			row = append(row, orNone(OwnerName(p.Owner)))
		}
		if !wide {
			t.Row(row...)
			continue
		}
		t.Row(append(row, orNone(ShortID(p.Id)), orNone(p.RuntimeHandler), orNone(p.Source), orNone(strings.Join(images(p), ",")))...)
	}
	return t
}

// ContainerTable returns a table with a row for each container of the pods.
func ContainerTable(pods []*huskv1.Pod, wide bool, now time.Time) *Table {
	header := []string{"POD", "CONTAINER", "READY", "STATUS", "RESTARTS", "AGE", "IMAGE"}
	if wide {
		header = append(header, "ID", "PID", "KIND", "EXIT")
	}
	t := NewTable(header...)
	for _, p := range pods {
		for _, c := range p.Containers {
			s := ContainerStatus(c)
			row := []any{PodName(p.Namespace, p.Name), c.Name, yesNo(c.Ready), Cell{Text: s.Word, Style: s.Style()}, s.RestartsText(now), containerAge(c, now), c.Image}
			if wide {
				row = append(row, orNone(ShortID(c.Id)), number(c.Pid), kind(c), exitText(c))
			}
			t.Row(row...)
		}
	}
	return t
}

// PodName returns the name of a pod, with its namespace unless that is the default.
func PodName(namespace, name string) string {
	if namespace == defaultNamespace {
		return name
	}
	return namespace + "/" + name
}

func images(p *huskv1.Pod) []string {
	var out []string
	for _, c := range p.Containers {
		if !slices.Contains(out, c.Image) {
			out = append(out, c.Image)
		}
	}
	return out
}

// containerAge returns the age of the present run: since its start or, before that, since its
// creation.
func containerAge(c *huskv1.Container, now time.Time) string {
	if c.StartedNs == 0 && c.CreatedNs == 0 {
		return none
	}
	return AgeAt(now, cmp.Or(c.StartedNs, c.CreatedNs))
}

func kind(c *huskv1.Container) string {
	switch {
	case c.Sidecar:
		return "sidecar"
	case c.Init:
		return "init"
	default:
		return "app"
	}
}

func exitText(c *huskv1.Container) string {
	if c.FinishedNs == 0 || c.State == running {
		return none
	}
	return strconv.Itoa(int(c.ExitCode))
}

// none is shown for an empty value, so that scripts can count columns.
const none = "<none>"

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orNone(s string) string { return cmp.Or(s, none) }

func number(n int32) string {
	if n == 0 {
		return none
	}
	return strconv.Itoa(int(n))
}
