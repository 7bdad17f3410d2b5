package render

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// The words of huskv1 that decide a pod's status.
const (
	running     = "Running"
	waiting     = "Waiting"
	terminated  = "Terminated"
	stopped     = "Stopped"
	terminating = "Terminating"
	completed   = "Completed"
	noRoom      = "OutOf" // and the resource
)

// Status is a pod's row as kubectl computes it.
type Status struct {
	Word         string // such as Running, CrashLoopBackOff, Init:0/1
	Ready, Total int    // containers, sidecars included
	Restarts     int32
	restarted    int64 // Unix time in ns of the last restart, 0 if none
}

// StatusOf computes what to say of a pod: the first init container that isn't done speaks for it,
// else the first container that isn't well.
func StatusOf(p *huskv1.Pod) Status {
	s := Status{Word: p.Phase}
	if p.Reason != "" {
		s.Word = p.Reason
	}
	initializing := s.addInit(p)
	if !initializing {
		s.addContainers(p)
	} else {
		for _, c := range p.Containers {
			if !c.Init {
				s.Total++
			}
		}
	}
	// What was asked of the pod outweighs how its containers took it.
	switch {
	case p.Reason == terminating || strings.HasPrefix(p.Reason, noRoom):
		s.Word = p.Reason
	case p.Phase == stopped:
		s.Word = stopped
	}
	return s
}

// addInit says whether the pod is still at its init containers.
func (s *Status) addInit(p *huskv1.Pod) bool {
	count, done, word := 0, 0, ""
	for _, c := range p.Containers {
		if !c.Init {
			continue
		}
		count++
		if c.Sidecar {
			s.Total++
		}
		if word != "" {
			continue
		}
		if w, over := initWord(c); !over && !p.Initialized {
			word = w
			s.addRestarts(c)
			continue
		}
		done++
		if c.Sidecar {
			s.addRestarts(c)
			s.addReady(c)
		}
	}
	if done == count {
		return false
	}
	if word == "Init" {
		word = fmt.Sprintf("Init:%d/%d", done, count)
	}
	s.Word = word
	return true
}

// initWord says whether the next init container's turn has come and, if not, why; just "Init" means
// that there is no trouble to tell of.
func initWord(c *huskv1.Container) (word string, over bool) {
	switch {
	case c.State == terminated && c.ExitCode == 0, c.Sidecar && c.State == running:
		return "", true
	case c.State == terminated:
		return "Init:" + endWord(c), false
	case c.State == waiting && c.Reason != "" && c.Reason != "PodInitializing":
		return "Init:" + c.Reason, false
	default:
		return "Init", false
	}
}

func (s *Status) addContainers(p *huskv1.Pod) {
	anyRunning := false
	for i := len(p.Containers) - 1; i >= 0; i-- { // the first one has the last word
		c := p.Containers[i]
		if c.Init {
			continue
		}
		s.Total++
		s.addRestarts(c)
		switch {
		case c.State == waiting && c.Reason != "":
			s.Word = c.Reason
		case c.State == terminated:
			s.Word = endWord(c)
		case c.State == running && c.Ready:
			anyRunning = true
		}
		s.addReady(c)
	}
	if s.Word == completed && anyRunning {
		s.Word = "NotReady"
	}
}

func (s *Status) addReady(c *huskv1.Container) {
	if c.State == running && c.Ready {
		s.Ready++
	}
}

func (s *Status) addRestarts(c *huskv1.Container) {
	s.Restarts += c.Restarts
	if c.Restarts == 0 {
		return
	}
	at := c.StartedNs
	if c.State != running {
		at = c.FinishedNs
	}
	s.restarted = max(s.restarted, at)
}

// endWord says how a terminated container ended.
func endWord(c *huskv1.Container) string {
	switch {
	case c.Reason != "":
		return c.Reason
	case c.ExitCode == 0:
		return completed
	default:
		return "ExitCode:" + strconv.Itoa(int(c.ExitCode))
	}
}

// ReadyText is the READY column: "1/2".
func (s Status) ReadyText() string { return fmt.Sprintf("%d/%d", s.Ready, s.Total) }

// RestartsText is the RESTARTS column: "0", "3 (5m ago)".
func (s Status) RestartsText(now time.Time) string {
	n := strconv.Itoa(int(s.Restarts))
	if s.restarted == 0 {
		return n
	}
	return n + " (" + AgeAt(now, s.restarted) + " ago)"
}

// Style colours a status word, of a pod or a container: red is what needs somebody to look.
func (s Status) Style() Style {
	switch s.Word {
	case running:
		if s.Ready < s.Total {
			return Soon
		}
		return Good
	case completed, "Succeeded", stopped:
		return Faint
	case "Pending", waiting, terminating, "NotReady", "ContainerCreating", "PodInitializing":
		return Soon
	}
	var done, count int
	if n, _ := fmt.Sscanf(s.Word, "Init:%d/%d", &done, &count); n == 2 {
		return Soon
	}
	return Bad
}

// ContainerStatus is the status of one container, in the words of a pod's.
func ContainerStatus(c *huskv1.Container) Status {
	s := Status{Word: c.State, Total: 1}
	switch {
	case c.State == terminated:
		s.Word = endWord(c)
	case c.State == waiting && c.Reason != "":
		s.Word = c.Reason
	}
	s.addReady(c)
	s.addRestarts(c)
	return s
}
