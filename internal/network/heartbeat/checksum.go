package heartbeat

import (
	"time"

	"github.com/huskd/husk/internal/network/backend"
)

// Checksums says whether the network gets the checksums of pods' packets inside VXLAN packets
// wrong. These are left to the network card, or to the kernel just before it. Some cards, and some
// versions of Linux, do it wrong for encapsulated packets, and the peer drops them. With the
// checksum offloading of the VXLAN link off, the link itself fills them in.
type Checksums string

// The values of Checksums.
const (
	ChecksumsFine Checksums = ""
	// ChecksumsSuspect: packets with their checksum are answered, and those without aren't. It ends in
	// time: Cured if offloading was switched off and that has helped, otherwise Fine.
	ChecksumsSuspect Checksums = "suspect"
	ChecksumsCured   Checksums = "cured"
)

const (
	// trust is how many packets with their checksum must have been answered in a row, while suspicion
	// others weren't, before the checksums of these are suspected. A network that loses a tenth of all
	// packets does that once in days. hint is how many are enough not to break the way before.
	hint, trust, suspicion = 2, 4, 6
	// cured is how many packets without it must then be answered in a row, and cureTime how long that
	// may take. Meanwhile the way isn't broken.
	cured    = 5
	cureTime = 6 * time.Second
)

// sums is the test of checksums of the way in use.
type sums struct {
	next     time.Time // when to send a probe with its checksum
	answered int       // of these, in a row
	suspect  time.Time // since when checksums are suspected; zero if they aren't
	goods    int       // answers to other probes since then, in a row
	tried    time.Time // when a suspicion was last found to be wrong
}

// wantsSummed reports whether a probe with its checksum is to be sent: by VXLAN, once it is silent.
func (w *watched) wantsSummed(now time.Time) bool {
	current := w.by(w.target.Way)
	return w.target.Way == backend.VXLAN && current != nil && current.missed > 0 && w.health.Checksums == ChecksumsFine && !now.Before(w.sums.next)
}

// good takes the answer to a probe of the way in use. It reports whether Checksums has changed.
func (s *sums) good(w *watched) (changed bool) {
	s.answered = 0
	if s.suspect.IsZero() {
		return false
	}
	if s.goods++; s.goods < cured {
		return false
	}
	s.suspect, w.health.Checksums = time.Time{}, ChecksumsCured
	return true
}

// silent takes that a probe of the way in use wasn't answered. It reports whether Checksums has
// changed, and whether to wait for a cure.
func (s *sums) silent(w *watched, now time.Time) (changed, wait bool) {
	s.goods = 0
	if s.suspect.IsZero() {
		recently := !s.tried.IsZero() && now.Sub(s.tried) < calm
		if w.health.Checksums != ChecksumsFine || w.target.Way != backend.VXLAN || s.answered < hint || recently {
			return false, false
		}
		if missed := w.by(backend.VXLAN).missed; missed < suspicion || s.answered < trust {
			return false, missed < suspicion
		}
		s.suspect, w.health.Checksums = now, ChecksumsSuspect
		return true, true
	}
	if now.Sub(s.suspect) < cureTime {
		return false, true
	}
	s.suspect, s.tried, w.health.Checksums = time.Time{}, now, ChecksumsFine
	return true, false
}

// stop ends the test, as another way or size is in use.
func (s *sums) stop(w *watched) {
	*s = sums{tried: s.tried}
	if w.health.Checksums == ChecksumsSuspect {
		w.health.Checksums = ChecksumsFine
	}
}
