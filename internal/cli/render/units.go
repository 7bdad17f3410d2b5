package render

import (
	"fmt"
	"strconv"
	"time"
)

const day = 24 * time.Hour

// Age formats a duration as kubectl does: in two units as long as the smaller one matters, then in
// one.
func Age(d time.Duration) string {
	switch {
	case d < -time.Second: // more than rounding: clocks differ
		return "<invalid>"
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return unit(d, time.Second, "s")
	case d < 10*time.Minute:
		return two(d, time.Minute, "m", time.Second, "s")
	case d < 3*time.Hour:
		return unit(d, time.Minute, "m")
	case d < 8*time.Hour:
		return two(d, time.Hour, "h", time.Minute, "m")
	case d < 2*day:
		return unit(d, time.Hour, "h")
	case d < 8*day:
		return two(d, day, "d", time.Hour, "h")
	case d < 2*365*day:
		return unit(d, day, "d")
	case d < 8*365*day:
		return two(d, 365*day, "y", day, "d")
	default:
		return unit(d, 365*day, "y")
	}
}

func unit(d, of time.Duration, name string) string {
	return strconv.FormatInt(int64(d/of), 10) + name
}

func two(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	s := unit(d, big, bigName)
	if rest := d % big / small; rest > 0 {
		s += unit(d%big, small, smallName)
	}
	return s
}

// AgeAt returns the Age at now of a Unix time in nanoseconds; 0 means unknown.
func AgeAt(now time.Time, ns int64) string {
	if ns == 0 {
		return "<unknown>"
	}
	return Age(now.Sub(time.Unix(0, ns)))
}

// Elapsed formats how long something took: "143 ms", "2.31 s", "1m32s".
func Elapsed(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "<1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Truncate(10*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	default:
		return d.Truncate(time.Second).String()
	}
}

// Size formats a number of bytes with three digits and decimal units, as registries and docker do:
// 999B, 1.23kB, 30.1MB.
func Size(n int64) string {
	if n < 0 {
		n = 0
	}
	if n < 1000 {
		return strconv.FormatInt(n, 10) + "B"
	}
	v := float64(n)
	for _, name := range []string{"kB", "MB", "GB", "TB", "PB"} {
		v /= 1000
		if v < 999.5 {
			return strconv.FormatFloat(v, 'f', decimals(v), 64) + name
		}
	}
	return strconv.FormatFloat(v/1000, 'f', decimals(v/1000), 64) + "EB"
}

// decimals returns the number of decimals that leaves three digits of v after rounding.
func decimals(v float64) int {
	switch {
	case v < 9.995:
		return 2
	case v < 99.95:
		return 1
	default:
		return 0
	}
}
