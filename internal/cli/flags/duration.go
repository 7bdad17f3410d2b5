package flags

import (
	"errors"
	"strconv"
	"time"
)

// Duration is the value of a flag that takes a duration: with a unit as in 1m30s, or a plain number
// of seconds as docker and kubectl accept it.
type Duration time.Duration

// Type names the value in the help.
func (d *Duration) Type() string { return "duration" }

// String returns "0" for zero, which pflag doesn't show as a default.
func (d *Duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

// Set parses the flag's argument.
func (d *Duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if seconds, notNumber := strconv.ParseUint(s, 10, 32); notNumber == nil {
		v, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil || v < 0 {
		return errors.New("must be a duration such as 10s or 1m30s, or a number of seconds")
	}
	*d = Duration(v)
	return nil
}
