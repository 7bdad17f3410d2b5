package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// CronState is what must be kept of a CronJob.
type CronState struct {
	// Last is the time of the schedule for which a Job was last started or skipped.
	Last time.Time `json:"last,omitzero"`
	// Held is the time of the schedule that waits for the previous Job.
	Held time.Time `json:"held,omitzero"`
}

// JobSummary is a Job of a CronJob as it is now.
type JobSummary struct {
	Ref
	Created, Finished time.Time
	Failed            bool
	Removing          bool
}

// Schedule is the schedule of a CronJob in a time zone.
type Schedule struct{ times cron.Schedule }

// ParseSchedule parses a schedule of five fields, or one such as @daily. The zone may be empty for
// the node's time zone.
func ParseSchedule(text, zone string) (Schedule, error) {
	if strings.Contains(text, "TZ=") {
		return Schedule{}, fmt.Errorf("%q names a time zone: set spec.timeZone instead", text)
	}
	times, err := cron.ParseStandard(text)
	if err != nil {
		return Schedule{}, fmt.Errorf("%q is not a schedule such as \"*/5 * * * *\": %s", text, strings.ToLower(err.Error()))
	}
	if zone == "" {
		return Schedule{times}, nil
	}
	at, err := time.LoadLocation(zone)
	if err != nil || strings.EqualFold(zone, "local") {
		return Schedule{}, fmt.Errorf("%q is not a time zone such as Europe/Berlin that this node knows", zone)
	}
	if s, ok := times.(*cron.SpecSchedule); ok {
		s.Location = at
	}
	return Schedule{times}, nil
}

// Next returns the first time after t; zero if there is none within five years.
func (s Schedule) Next(t time.Time) time.Time { return s.times.Next(t) }

// mostMissed is the number of missed times that are looked through one by one.
const mostMissed = 100

// due returns the latest time of the schedule after since that isn't after now; zero if none.
func (s Schedule) due(since, now time.Time) time.Time {
	var last time.Time
	t := s.Next(since)
	for n := 0; !t.IsZero() && !t.After(now); n++ {
		last = t
		if n == mostMissed {
			// Many were missed: go on near the present. The step is that of the schedule at this time.
			if step := s.Next(t).Sub(t); step > 0 && now.Sub(t) > 2*step {
				t = now.Add(-2 * step)
			}
		}
		t = s.Next(t)
	}
	return last
}

// cronJob decides for a CronJob.
func (p *planner) cronJob() {
	state := CronState{}
	if p.State.Cron != nil {
		state = *p.State.Cron
	}
	p.state.Cron = &state
	c := &cronPlan{planner: p, CronState: &state, spec: p.Cron}
	for i := range p.Jobs {
		if j := &p.Jobs[i]; j.Finished.IsZero() && !j.Removing {
			c.active = append(c.active, *j)
		}
	}
	zone := ""
	if c.spec.TimeZone != nil {
		zone = *c.spec.TimeZone
	}
	schedule, err := ParseSchedule(c.spec.Schedule, zone)
	status := Status{Phase: Scheduled, Done: true, Active: int32(len(c.active))}
	suspended := c.spec.Suspend != nil && *c.spec.Suspend
	switch {
	case err != nil: // the node has lost the time zone
		status.Phase, status.Message = Failed, err.Error()
	case suspended:
		status.Phase, status.Message = Suspended, "no jobs are started"
	default:
		c.start(schedule)
		next := schedule.Next(p.Now)
		if !next.IsZero() {
			p.wakeAt(next)
			status.Message = "next at " + next.Format("2006-01-02 15:04 MST")
		}
	}
	c.trimHistory()
	status.Active = int32(len(c.active) + len(p.decision.Start))
	p.decision.Status = status
}

// cronPlan is a decision about a CronJob.
type cronPlan struct {
	*planner
	*CronState
	spec   *batchv1.CronJobSpec
	active []JobSummary
}

// start starts the Job that is due. Of several times that were missed, the last counts.
func (c *cronPlan) start(schedule Schedule) {
	since := c.state.Created
	if c.Last.After(since) {
		since = c.Last
	}
	deadline := c.spec.StartingDeadlineSeconds
	if deadline != nil {
		if earliest := c.Now.Add(-time.Duration(*deadline) * time.Second); earliest.After(since) {
			since = earliest
		}
	}
	due := schedule.due(since, c.Now)
	if due.IsZero() {
		return
	}
	switch {
	case len(c.active) > 0 && c.spec.ConcurrencyPolicy == batchv1.ForbidConcurrent:
		if !c.Held.Equal(due) {
			c.Held = due
			c.event(false, "JobAlreadyActive", "the job of %s waits: %s is still running", due.Format(time.RFC3339), c.active[0].Name)
		}
		return
	case c.spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, j := range c.active {
			c.decision.RemoveJobs = append(c.decision.RemoveJobs, j.Ref)
		}
		c.active = nil
	}
	c.Last, c.Held = due, time.Time{}
	ref := Ref{Kind: Job, Namespace: c.Namespace, Name: fmt.Sprintf("%s-%d", c.Name, due.Unix()/60)}
	if slices.ContainsFunc(c.Jobs, func(j JobSummary) bool { return j.Ref == ref }) {
		return
	}
	owner := c.Ref
	job := &Workload{
		Ref: ref, Owner: &owner, Template: c.Template, Revision: c.Revision, Job: c.Workload.Job,
		Labels: c.JobLabels, Annotations: with(c.JobAnnotations, annotationScheduled, due.UTC().Format(time.RFC3339)),
	}
	c.decision.Start = append(c.decision.Start, job)
	c.event(false, "JobStarted", "started %s", ref.Name)
}

// trimHistory removes the oldest Jobs that have ended, beyond the numbers to keep.
func (c *cronPlan) trimHistory() {
	for _, failed := range []bool{false, true} {
		var ended []JobSummary
		for i := range c.Jobs {
			if j := &c.Jobs[i]; !j.Finished.IsZero() && !j.Removing && j.Failed == failed {
				ended = append(ended, *j)
			}
		}
		slices.SortFunc(ended, func(x, y JobSummary) int {
			return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
		})
		keep, limit := 3, c.spec.SuccessfulJobsHistoryLimit
		if failed {
			keep, limit = 1, c.spec.FailedJobsHistoryLimit
		}
		if limit != nil {
			keep = int(*limit)
		}
		for i := 0; i < len(ended)-keep; i++ {
			c.decision.RemoveJobs = append(c.decision.RemoveJobs, ended[i].Ref)
		}
	}
}
