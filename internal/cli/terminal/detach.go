package terminal

import "bytes"

// The keys that detach from a terminal, as in docker and podman.
const (
	ctrlP = 0x10
	ctrlQ = 0x11
)

// Detach finds ctrl-p ctrl-q in what is typed. A ctrl-p is held back until the next key shows what
// it meant.
type Detach struct{ held bool }

// Filter returns the part of typed to pass on, and whether the user asked to detach, in which case
// the rest is dropped. The result may share the memory of typed.
func (d *Detach) Filter(typed []byte) (pass []byte, leave bool) {
	if !d.held && bytes.IndexByte(typed, ctrlP) < 0 {
		return typed, false
	}
	for _, key := range typed {
		if d.held {
			d.held = false
			if key == ctrlQ {
				return pass, true
			}
			pass = append(pass, ctrlP)
		}
		if key == ctrlP {
			d.held = true
			continue
		}
		pass = append(pass, key)
	}
	return pass, false
}
