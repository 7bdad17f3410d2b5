package render

import (
	"math"
	"testing"
	"time"
)

func TestAge(t *testing.T) {
	t.Parallel()
	const (
		s = time.Second
		m = time.Minute
		h = time.Hour
		d = 24 * h
		y = 365 * d
	)
	for in, want := range map[time.Duration]string{
		-time.Hour: "<invalid>", -1001 * time.Millisecond: "<invalid>", -s: "0s", -1: "0s",
		0: "0s", 999 * time.Millisecond: "0s", s: "1s", 119*s + 999*time.Millisecond: "119s",
		2 * m: "2m", 2*m + s: "2m1s", 9*m + 59*s: "9m59s",
		10 * m: "10m", 10*m + 59*s: "10m", 3*h - 1: "179m",
		3 * h: "3h", 3*h + 59*s: "3h", 3*h + m: "3h1m", 8*h - 1: "7h59m",
		8 * h: "8h", 8*h + 30*m: "8h", 48*h - 1: "47h",
		2 * d: "2d", 2*d + h: "2d1h", 8*d - 1: "7d23h",
		8 * d: "8d", 8*d + 23*h: "8d", 2*y - 1: "729d",
		2 * y: "2y", 2*y + d: "2y1d", 8*y - 1: "7y364d",
		8 * y: "8y", 100 * y: "100y", math.MaxInt64: "292y",
	} {
		if got := Age(in); got != want {
			t.Errorf("Age(%s) = %s, want %s", in, got, want)
		}
	}
	now := time.Unix(1000, 0)
	if got := AgeAt(now, 0); got != "<unknown>" {
		t.Errorf("AgeAt of no time = %s", got)
	}
	if got := AgeAt(now, 995*int64(time.Second)); got != "5s" {
		t.Errorf("AgeAt = %s", got)
	}
}

func TestElapsed(t *testing.T) {
	t.Parallel()
	for in, want := range map[time.Duration]string{
		-5: "<1 ms", 0: "<1 ms", 999 * time.Microsecond: "<1 ms",
		time.Millisecond: "1 ms", 143_600 * time.Microsecond: "143 ms", time.Second - 1: "999 ms",
		time.Second: "1.00 s", 2319 * time.Millisecond: "2.31 s", 10*time.Second - 1: "9.99 s",
		10 * time.Second: "10.0 s", time.Minute - 1: "59.9 s",
		time.Minute: "1m0s", 92*time.Second + 1: "1m32s", 26 * time.Hour: "26h0m0s",
	} {
		if got := Elapsed(in); got != want {
			t.Errorf("Elapsed(%d) = %s, want %s", in, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[int64]string{
		-1: "0B", 0: "0B", 1: "1B", 999: "999B",
		1000: "1.00kB", 1234: "1.23kB", 9994: "9.99kB", 9996: "10.0kB", 12_345: "12.3kB", 99_960: "100kB",
		123_456: "123kB", 999_499: "999kB", 999_500: "1.00MB", 1_000_000: "1.00MB",
		30_100_000: "30.1MB", 999_999_999: "1.00GB", 5e12: "5.00TB", 5e15: "5.00PB",
		math.MaxInt64: "9.22EB",
	} {
		if got := Size(in); got != want {
			t.Errorf("Size(%d) = %s, want %s", in, got, want)
		}
	}
}
