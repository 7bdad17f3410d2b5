package render

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// The phases, states and reasons of huskv1 that decide a pod's status.
const (
	running     = "Running"
	waiting     = "Waiting"
	terminated  = "Terminated"
	stopped     = "Stopped"
	terminating = "Terminating"
	completed   = "Completed"
	outOf       = "OutOf" // followed by the resource
)

// Status is the status of a pod as kubectl computes it.
type Status struct {
	Word         string // such as Running, CrashLoopBackOff, Init:0/1
	Ready, Total int    // containers, sidecars included
	Restarts     int32
	restarted    int64 // Unix time in ns of the last restart; 0 if none
}

// StatusOf returns the status of a pod. The first init container that has not completed decides it,
// or else the first container with a problem.
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
	// A request to stop or an eviction overrides the containers' states.
	switch {
	case p.Reason == terminating || strings.HasPrefix(p.Reason, outOf):
		s.Word = p.Reason
	case p.Phase == stopped:
		s.Word = stopped
	}
	return s
}

// addInit adds the init containers and reports whether the pod is still initializing.
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
		if p.Reason != "" && !isProgress(p.Reason) {
			word = p.Reason
		}
	}
	s.Word = word
	return true
}

// initWord reports whether the init container allows the next one to start and, if not, why. The
// word "Init" means that it is making progress.
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
	for i := len(p.Containers) - 1; i >= 0; i-- { // backwards, so that the first container decides
		c := p.Containers[i]
		if c.Init {
			continue
		}
		s.Total++
		s.addRestarts(c)
		switch {
		case c.State == waiting && isProgress(c.Reason) && s.Word != p.Phase:
			// The pod or another container has a problem.
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

// endWord returns the reason of a terminated container.
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

// ReadyText returns the column READY: "1/2".
func (s Status) ReadyText() string { return fmt.Sprintf("%d/%d", s.Ready, s.Total) }

// RestartsText returns the column RESTARTS: "0", "3 (5m ago)".
func (s Status) RestartsText(now time.Time) string {
	n := strconv.Itoa(int(s.Restarts))
	if s.restarted == 0 {
		return n
	}
	return n + " (" + AgeAt(now, s.restarted) + " ago)"
}

// Style returns the colour for the status: red if someone should look.
func (s Status) Style() Style {
	if isProgress(s.Word) {
		return Soon
	}
	switch s.Word {
	case running:
		if s.Ready < s.Total {
			return Soon
		}
		return Good
	case completed, "Succeeded", stopped:
		return Faint
	case "Pending", waiting, terminating, "NotReady":
		return Soon
	}
	return Bad
}

// isProgress reports whether a reason means that the pod is on its way to start.
func isProgress(reason string) bool {
	var done, count int
	n, _ := fmt.Sscanf(reason, "Init:%d/%d", &done, &count)
	return n == 2 || reason == "ContainerCreating" || reason == "PodInitializing"
}

// ContainerStatus returns the status of one container.
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
