package cli

import (
	"errors"
	"strconv"
	"time"
)

// duration is the value of a flag that takes a time: with a unit as in 1m30s,
// or a plain number of seconds as docker and kubectl take it.
type duration time.Duration

func (d *duration) Type() string { return "duration" }

// String is "0" for zero, by which pflag knows a default not worth showing.
func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

func (d *duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if seconds, notNumber := strconv.ParseUint(s, 10, 32); notNumber == nil {
		v, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil || v < 0 {
		return errors.New("give a time as 10s or 1m30s, or a number of seconds")
	}
	*d = duration(v)
	return nil
}
