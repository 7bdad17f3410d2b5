package view

import (
	"context"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/logs"
)

// RemoveLog removes the log of a run that is gone, with what was moved away of it.
func RemoveLog(st container.Status) error { return logs.Remove(st.Log) }

// How much of a log the kubelet takes for the message of a container's end.
const (
	lastLines = 80
	lastBytes = 2048
)

// LastLines is the end of what a run has written.
func LastLines(st container.Status) string {
	var out []byte
	_ = logs.Read(context.Background(), st.Log, logs.Options{Tail: lastLines}, func(l logs.Line) error {
		out = append(append(out, l.Text...), '\n')
		return nil
	}) // what can't be read is no message
	return string(out[max(0, len(out)-lastBytes):])
}
