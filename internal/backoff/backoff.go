// Package backoff bounds how long a node waits before it asks again what all nodes share: etcd, or
// the API server. However long that was away, a node finds within Most that it is back, and not at
// the same time as all others. It is pure.
package backoff

import "time"

// Most is the longest wait.
const Most = 5 * time.Second

// Wait returns how long to wait after a number of failures in a row, which is 1 or more. The waits
// grow from first to Most, by a factor of 2. Each is half of that and a share of the other half:
// random, at least 0 and below 1, which differs between nodes.
func Wait(first time.Duration, failures int, random float64) time.Duration {
	limit := first
	for ; failures > 1 && limit < Most; failures-- {
		limit *= 2
	}
	limit = min(limit, Most)
	return limit/2 + time.Duration(random*float64(limit/2))
}
