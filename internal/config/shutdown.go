package config

import "time"

// Shutdown says how long a poweroff or reboot is delayed for pods to stop.
type Shutdown struct {
	Grace         int `key:"shutdown-grace-period" help:"seconds by which a poweroff or reboot is delayed, through systemd-logind, for pods to stop; 0 for no delay"`
	GraceCritical int `key:"shutdown-grace-period-critical-pods" help:"how many of these seconds are kept for critical pods, which stop last"`
}

// Periods returns the grace period and the part of it that is kept for critical pods.
func (s Shutdown) Periods() (total, critical time.Duration) {
	return time.Duration(s.Grace) * time.Second, time.Duration(s.GraceCritical) * time.Second
}

func (s Shutdown) check(bad func(key, format string, args ...any)) {
	if s.Grace < 0 {
		bad("shutdown-grace-period", "%d: must be at least 0", s.Grace)
	}
	if s.GraceCritical < 0 || s.GraceCritical > s.Grace {
		bad("shutdown-grace-period-critical-pods", "%d: must be at least 0 and not above shutdown-grace-period, which is %d", s.GraceCritical, s.Grace)
	}
}
